"""Who is speaking: signing keys, certificates, the consortium's authority and the pin on its coordinator."""

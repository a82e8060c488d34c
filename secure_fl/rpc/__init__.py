"""Generated from proto/ by scripts/gen_protos. Do not edit."""

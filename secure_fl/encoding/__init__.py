"""Between floats and ring integers: what a site sends is encoded here, what was opened is decoded here."""

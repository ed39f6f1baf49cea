"""Scripts that train kvarn's default model (they need torch), and models to compare methods on."""

"""PTX text and its parts: tokens, expressions, declarations, and the program that they make."""

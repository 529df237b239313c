"""Decoding: beam search (paper 6.1), scoring of given translations, the translator, and CTranslate2."""

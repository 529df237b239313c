"""Decoding: beam search (paper 6.1), sampling, scoring of given translations, the translator, and CTranslate2."""

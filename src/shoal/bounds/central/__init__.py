"""Rounds of DP-SGD's sampling schemes, drawn by a trusted server; `shoal.mechanisms` chooses among them."""

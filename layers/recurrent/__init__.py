"""What RNN and LSTM have in common."""

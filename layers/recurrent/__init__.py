"""What RNN and LSTM share."""

"""What generated files hold beside their net: functions of torch alone, copied into them from their first def or class on."""

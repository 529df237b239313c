"""How good the translations are: sacreBLEU's scores and a report a stranger can read."""

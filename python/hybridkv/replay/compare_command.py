def add_compare(commands):
    pass

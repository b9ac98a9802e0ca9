"""The doctor's rows about GPUs: driver.py and sysfs.py read the machine into plain data, judge.py makes rows
of the data. torch.cuda is not initialized."""

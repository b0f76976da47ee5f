"""What an ECG shows before any diagnosis: beats, the quality of its signals, faults in it."""

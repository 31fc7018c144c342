"""The launcher behind `launch.py`: finds the model, starts the processes, watches them and stops them."""

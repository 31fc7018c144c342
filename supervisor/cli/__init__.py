"""The commands against a running server, in a process of their own: `launch.py ps`, `logs`, `drain` …"""

"""The fabric in ns-3, a program in C++ that is compiled here and runs one trial.

`program` compiles it, `process` speaks with it, `job` describes a trial to it, `rig` is the fabric
under the loop. The program's source is in the folder `ns3`.
"""

"""The live lab: real processes in network namespaces, judged by the checks of the lab."""

"""How a collective is embedded in a graph: the call, its order, its error. Contains no collective."""

"""How a collective stands in a graph: the call, its order, its error. No collective is here."""

"""What the callbacks change on a model, and what they compare over the ranks while it trains. No callback is here."""

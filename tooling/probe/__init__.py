"""What a host and a container can really do: facts, ladders, checks, advice. Judgement is pure, collection is not."""

"""The ground floor: errors, quantities, arithmetic. Imports nothing else of megatile."""

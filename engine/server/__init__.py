"""A server with OpenAI's API: completions, chat, models, health, and metrics under vLLM's names.

HTTP ──▶ app ──▶ asking: what is asked for ──▶ Backend.open ──▶ engine in a thread, or a simulator in real time
SSE  ◀── streaming ◀── Channel ◀── Delta, after each step
"""

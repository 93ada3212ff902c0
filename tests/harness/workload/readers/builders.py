"""Small traces in the public formats."""

from __future__ import annotations

import json

AZURE_2023 = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 18:15:46.6805900,374,44\r\n"
    b"2023-11-16 18:15:46.6805901,396,109\r\n"
    b"2023-11-16 18:15:50.9951690,879,55"
)
AZURE_2024 = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    b"2024-05-10 00:00:00.009930+00:00,2162,5\n"
    b"2024-05-10 00:00:01+00:00,2399,6\n"
)
AZURE_2025 = (
    b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
    b"2024-10-15T12:00:00.269Z,0,770,491\n"
    b"2024-10-15T12:00:05.819Z,1,949,126\n"
)
BURSTGPT_1 = (
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5,ChatGPT,472,18,490,Conversation log\n"
    b"45,ChatGPT,0,0,0,Conversation log\n"
    b"45,GPT-4,417,0,417,API log\n"
    b"118,GPT-4,417,276,693,Conversation log\n"
    b"118,GPT-4,17,3,20,Conversation log\n"
)
BURSTGPT_3 = (
    b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
    b"19440161.5,1722ac82,2,ChatGPT,36,29,65,Conversation log\n"
)


SERVEGEN = b"request_id,timestamp,input_tokens,output_tokens\n0,0.5,10,20\n1,1.25,15,25\n"


def bailian_line(chat: object, parent: object, timestamp: object, lengths: tuple[int, int], hash_ids: object) -> bytes:
    record = {"chat_id": chat, "parent_chat_id": parent, "timestamp": timestamp, "input_length": lengths[0]}
    record |= {"output_length": lengths[1], "type": "text", "turn": 1, "hash_ids": hash_ids}
    return json.dumps(record).encode() + b"\n"


def mooncake_line(timestamp: object, input_length: object, output_length: object, hash_ids: object) -> bytes:
    record = {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": hash_ids,
    }
    return json.dumps(record).encode() + b"\n"

#!/usr/bin/env bash
# An image from a file by curl alone: sightline serve & examples/curl.sh [URL]
set -euo pipefail

url="${1:-http://127.0.0.1:8000}"
image="$(base64 <sightline/data/demo/sign.png | tr -d '\n')"
curl -sS --fail-with-body "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -H "Authorization: Bearer ${SIGHTLINE_API_KEY:-unused}" -d @- <<EOF
{
  "messages": [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,$image"}},
    {"type": "text", "text": "What does the sign say?"}
  ]}],
  "max_tokens": 32, "temperature": 0
}
EOF

"""A model's folder from its name: a local folder, or a Hub id through huggingface_hub's cache."""

from pathlib import Path

import sightline.data
from sightline.errors import CheckpointError

EMBEDDED = Path(sightline.data.__file__).parent / "embedded"
_WANTED = ["*.json", "*.jinja", "*.safetensors", "tokenizer*", "merges.txt", "vocab.json"]


def locate_model(name: str, revision: str | None, weights: bool = True) -> Path:
    """The folder that holds the model's files; without a name, the model that comes with the package.

    Downloads when needed, unless HF_HUB_OFFLINE is set.
    """
    if not name:
        return EMBEDDED
    folder = Path(name).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise CheckpointError(f"{name} is a folder, so revision {revision!r} means nothing.")
        return folder
    if folder.exists():
        raise CheckpointError(f"{name} is a file, not a checkpoint folder.")
    if name.count("/") != 1 or name.startswith(("/", ".", "~")):
        raise CheckpointError(f"There is no folder {name}, and it is not a Hub id of the form owner/name.")
    return _from_hub(name, revision, weights)


def _from_hub(name: str, revision: str | None, weights: bool) -> Path:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    at = f" at revision {revision!r}" if revision else ""
    wanted = _WANTED if weights else [pattern for pattern in _WANTED if "safetensors" not in pattern]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except LocalEntryNotFoundError:
        raise CheckpointError(f"Model {name}{at} is not in the local Hub cache, and the Hub cannot be reached.") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        raise CheckpointError(f"The Hub has no model {name}{at} that you may read (status {status}).") from None
    except HFValidationError:
        raise CheckpointError(f"There is no folder {name}, and it is not a valid Hub id.") from None
    except (httpx.HTTPError, OSError) as error:
        raise CheckpointError(f"Model {name}{at} could not be fetched from the Hub: {error}.") from None

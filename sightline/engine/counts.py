"""What an engine has really done, counted on the host; metrics and tests read it."""

from dataclasses import dataclass, fields

from sightline.worker.step_input import EncodeInput, EncodeOutput, PackedBatch


@dataclass
class Counts:
    decoded: int = 0  # images and videos whose pixels were decoded
    videos_decoded: int = 0  # the videos among them
    encoded: int = 0  # images and videos that went through the tower
    videos_encoded: int = 0  # the videos among them
    frames_shared: int = 0  # temporal patches of videos that were not encoded, because earlier ones have the same pixels
    patches: int = 0
    peak_patches: int = 0  # most patches encoded together
    peak_items: int = 0  # most items encoded together
    restored: int = 0  # items whose embeddings came back from the host tier
    tokens: int = 0
    steps: int = 0

    def note_step(self, batch: PackedBatch) -> None:
        self.steps += 1
        self.tokens += len(batch.token_ids)

    def note_encoded(self, given: EncodeInput, output: EncodeOutput) -> None:
        ready = [item for item in given.items if item.key in output.ready]
        fresh = [item.distinct for item in ready if item.for_tower]
        self.frames_shared += sum(len(item.groups) - len(set(item.groups)) for item in ready)
        self.restored += sum(item.restore for item in ready)
        self.encoded += len(fresh)
        self.videos_encoded += sum(item.ref.kind == "video" for item in fresh)
        patches = sum(item.patches for item in fresh)
        self.patches += patches
        self.peak_patches = max(self.peak_patches, patches)
        self.peak_items = max(self.peak_items, len(fresh))

    def clear(self) -> None:
        for field in fields(self):
            setattr(self, field.name, 0)

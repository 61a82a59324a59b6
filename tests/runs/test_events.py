"""The checksum of event files."""

from pathlib import Path

from poslab.runs.tensorboard import RunTensorBoard


def test_the_quick_checksum_is_the_one_that_tensorboard_reads(tmp_path: Path) -> None:
    from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

    RunTensorBoard(tmp_path).close()
    # Of RFC 3720, appendix B.4, and the number that every such checksum is known by.
    assert pywrap_tensorflow.crc32c(b"123456789") == 0xE3069283
    assert pywrap_tensorflow.crc32c(bytes(32)) == 0x8A9136AA
    assert pywrap_tensorflow.crc32c(bytes(range(32))) == 0x46DD794E

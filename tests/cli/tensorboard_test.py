"""logging.tensorboard: the numbers of metrics.jsonl as TensorBoard event files, read here by their format's description."""
import struct

import program

POLYNOMIAL = 0x82F63B78


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        n, length_crc = struct.unpack_from("<QI", data, at)
        assert length_crc == masked_crc(data[at:at + 8]), f"length at {at}"
        record = data[at + 12:at + 12 + n]
        (crc,) = struct.unpack_from("<I", data, at + 12 + n)
        assert len(record) == n and crc == masked_crc(record), f"record at {at}"
        yield record
        at += 16 + n


def fields(message):
    """[(number, value)] of a protobuf message: ints, floats by their width, bytes."""
    found, at = [], 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            value = varint()
        elif key & 7 == 1:
            (value,) = struct.unpack_from("<d", message, at)
            at += 8
        elif key & 7 == 5:
            (value,) = struct.unpack_from("<f", message, at)
            at += 4
        else:
            assert key & 7 == 2, f"wire type {key & 7}"
            n = varint()
            value = message[at:at + n]
            at += n
        found.append((key >> 3, value))
    assert at == len(message)
    return found


class EventFiles(program.ProgramTest):
    def event_files(self, run):
        return sorted((self.folder / run).glob("events.out.tfevents.*"))

    def read(self, path):
        """The step that the file begins with, and {(tag, step): value}."""
        events = [dict(fields(record)) for record in records(path.read_bytes())]
        self.assertEqual(events[0][3], b"brain.Event:2")
        self.assertEqual(fields(events[1][7]), [(1, 1)], "a session starts")
        scalars = {}
        for event in events[2:]:
            self.assertGreater(event[1], 1.6e9, "seconds since 1970")
            for number, value in fields(event[5]):
                self.assertEqual(number, 1)
                value = dict(fields(value))
                key = (value[1].decode(), event[2])
                self.assertNotIn(key, scalars, "a number twice")
                scalars[key] = value[2]
        return events[1][2], scalars

    def check_same_numbers(self, scalars, lines):
        expected = {(f"{line['kind']}/{name}", line["step"]): float(value) for line in lines for name, value in line.items()
                    if name not in ("kind", "step", "path")}
        self.assertEqual(set(scalars), set(expected))
        for key, value in expected.items():
            (as_f32,) = struct.unpack("<f", struct.pack("<f", value))
            self.assertEqual(scalars[key], as_f32, key)

    def lines(self, run, name="metrics.jsonl"):
        return [program.json.loads(line) for line in (self.folder / run / name).read_text().splitlines()]

    def test_the_file_has_the_numbers_of_every_line_and_no_others(self):
        self.train("run", "logging.tensorboard=true", "training.val_interval_steps=3", ranks=2)
        (path,) = self.event_files("run")
        first, scalars = self.read(path)
        self.assertEqual(first, 1)
        self.assertIn(("step/loss", 6), scalars)
        self.assertIn(("step/lr", 1), scalars)
        self.assertIn(("step/tokens_per_second", 2), scalars)
        self.assertIn(("validation/loss", 3), scalars)
        self.check_same_numbers(scalars, self.lines("run"))

    def test_a_resumed_run_goes_on_in_a_new_file_that_takes_the_place_of_steps_done_again(self):
        both = ["logging.tensorboard=true", "checkpoint.save_interval_steps=2"]
        self.train("run", *both)
        self.train("run", *both, "training.max_steps=8", "checkpoint.resume_from_checkpoint=run/checkpoints/step-00000004",
                   "checkpoint.checkpoint_dir=run/again")
        old, new = self.event_files("run")
        self.assertEqual(self.read(old)[0], 1)
        first, scalars = self.read(new)
        self.assertEqual(first, 5, "readers drop what older files say of this step and later")
        self.assertEqual({step for tag, step in scalars if tag == "step/loss"}, {5, 6, 7, 8})
        self.check_same_numbers(scalars, self.lines("run", "metrics-from-step-00000004.jsonl"))

    def test_without_the_field_there_is_no_file(self):
        self.train("run")
        self.assertEqual(self.event_files("run"), [])


if __name__ == "__main__":
    program.main()

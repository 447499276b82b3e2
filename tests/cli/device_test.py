"""llm-train on devices: emulated ones, which a module gives it that is built for tests; and what it says where there is none."""
import os
import pathlib
import signal
import subprocess
import time
import unittest

import program

EMULATED = {"LLM_CUDA_MODULE": os.environ["EMULATED_CUDA"]}
SHARED = EMULATED | {"LLM_SHARE_DEVICE": "1"}
MODULE = pathlib.Path(os.environ["CUDA_MODULE"]) if os.environ.get("CUDA_MODULE") else None
SMALL = ["model.num_layers=1", "model.hidden_size=16", "data.max_seq_len=16", "model.max_seq_len=16",
         "model.dropout=0.1", "training.max_steps=3"]
CUDA = "distributed.device=cuda"


IS_SANITIZED = b"__asan_init" in program.PROGRAM.read_bytes()


@unittest.skipIf(IS_SANITIZED, "AddressSanitizer makes emulated ranks a hundred times slower; its build runs the same in parity and "
                 "mpi-devices")
class Devices(program.ProgramTest):
    def test_a_run_on_a_device_is_the_cpus_within_rounding_and_goes_on_from_its_checkpoint(self):
        # amp_dtype auto is bf16 on devices, and on those CPUs alone that multiply it.
        f32 = "optimization.use_amp=false"
        self.train("cpu", *SMALL, "distributed.device=cpu", "training.scheduler_type=constant", f32)
        saves = ["checkpoint.save_interval_steps=2", "training.scheduler_type=constant", f32]
        whole = self.train("one", *SMALL, CUDA, *saves, env=EMULATED, timeout=120)
        self.check_near("one", "cpu")
        self.assertIn("sample:", whole.out)
        self.train("part", *SMALL, CUDA, *saves, "training.max_steps=2", env=EMULATED, timeout=120)
        self.train("part", *SMALL, CUDA, *saves, "checkpoint.resume_from_checkpoint=auto",
                   env=EMULATED | {"LLM_EMULATED_SEED": "5"}, timeout=120)
        self.assertTrue(self.weights("part") == self.weights("one"))

    def test_ranks_with_devices_have_the_bits_of_one_through_the_host(self):
        batch = ["training.batch_size=2", "distributed.pp_n_microbatches=2", "distributed.backend=mpi"]
        self.train("one", *SMALL, CUDA, *batch, env=EMULATED, timeout=120)
        two = [*batch[1:], "training.batch_size=1", "distributed.pp_n_microbatches=1", "distributed.cuda_graphs=true"]
        done = self.train("two", *SMALL, CUDA, *two, "distributed.parallel_strategy=zero", "distributed.zero_stage=2",
                          ranks=2, env=SHARED, timeout=120)
        self.check_same("two")
        self.assertIn("emulated device 0000:00:00.0", done.out)
        self.assertRegex(done.out, "CUDA graphs of rank 0: [0-9]+ captured, launched [1-9][0-9]* times with [0-9]+ ops")

    def test_text_is_written_on_a_device(self):
        self.train("run", *SMALL, "training.max_steps=1")
        texts = []
        for device in ("cpu", "cuda"):
            done = subprocess.run([os.environ["LLM_GENERATE"], "--model", "run", "--prompt", "rank", "--temperature", "0",
                                   "--max-new-tokens", "6", "--device", device], cwd=self.folder, text=True, capture_output=True,
                                  env=self.environment | EMULATED)
            self.assertEqual(done.returncode, 0, done.stderr)
            texts.append(done.stdout)
        self.assertEqual(texts[0], texts[1])
        done = subprocess.run([os.environ["LLM_GENERATE"], "--model", "run", "--prompt", "rank", "--device", "cuda"], cwd=self.folder,
                              text=True, capture_output=True, env=self.environment | {"LLM_CUDA_MODULE": "/none.so"})
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertRegex(done.stderr, "^error: --device: cuda, but .*; write cpu or auto\n$")

    def test_ranks_do_not_share_a_device(self):
        done = self.llm_train(*program.TINY, *SMALL, CUDA, f"data.dataset_path={self.text()}", "logging.run_dir=run", ranks=2, env=EMULATED)
        self.assertEqual(done.code, 78, done)
        self.assertEqual(len(done.causes()), 1, done)
        self.assertIn("ranks 0 and 1 on", done.causes()[0])
        self.assertIn("would share device 0000:00:00.0 (emulated device)", done.causes()[0])

    def test_devices_of_different_capability_are_refused(self):
        done = self.llm_train(*program.TINY, *SMALL, CUDA, f"data.dataset_path={self.text()}", "logging.run_dir=run", ranks=2,
                              env=SHARED | {"LLM_EMULATED_CAPABILITIES": "80 90"})
        self.assertEqual(done.code, 78, done)
        self.assertEqual(len(done.causes()), 1, done)
        self.assertRegex(done.causes()[0], r"rank 0 \(.*\) has emulated device of compute capability 8.0, rank 1 \(.*\) has "
                                           r"emulated device of compute capability 9.0: .*; choose nodes with devices of one kind, or ")

    def test_memory_that_ends_in_an_op_names_what_was_asked_what_is_in_use_and_the_way_out(self):
        # The first product asks for a workspace: when the device is measured, then in the first step.
        for size, n_bytes, held in (("16", 16 << 20, "0.00"), ("64", 34_200_000, "[0-9.]+")):
            done = self.llm_train(*program.TINY, *SMALL, f"model.hidden_size={size}", CUDA, f"data.dataset_path={self.text()}",
                                  f"logging.run_dir=run-{size}", env=EMULATED | {"LLM_EMULATED_BYTES": str(n_bytes)})
            self.assertEqual(done.code, 70, done)
            self.assertRegex(done.causes()[0], rf"out of memory: 32.25 MiB asked for, {held} MiB of the [0-9.]+ MiB planned are "
                                               "held; what helps most: a smaller training.batch_size")
        self.assertNotIn("0.00 MiB of", done.causes()[0])

    def test_a_killed_rank_ends_a_run_on_devices(self):
        process = self.start(*program.TINY, *SMALL, CUDA, "distributed.backend=mpi", "training.max_steps=100000", "training.epochs=100000",
                             "training.batch_size=1", f"data.dataset_path={self.text()}", "logging.run_dir=run", ranks=2, env=SHARED)
        metrics = self.folder / "run/metrics.jsonl"
        program.wait_until(lambda: metrics.exists() and '"kind":"step"' in metrics.read_text())
        os.kill(program.children(process.pid)[1], signal.SIGKILL)
        begin = time.monotonic()
        done = self.finish(process)
        self.assertNotEqual(done.code, 0, done)
        self.assertLess(time.monotonic() - begin, 20, done)

    def test_without_a_device_auto_says_why_it_stays_on_the_cpu_and_cuda_is_refused(self):
        nowhere = {"LLM_CUDA_MODULE": str(self.folder / "none.so")}
        done = self.train("auto", *SMALL, "training.max_steps=1", env=nowhere)
        self.assertRegex(done.out, r"note: ranks compute on the CPU: rank 0 \(.*\): .*none.so: cannot open shared object file")
        done = self.llm_train(*program.TINY, CUDA, f"data.dataset_path={self.text()}", "logging.run_dir=run", env=nowhere)
        self.assertEqual(done.code, 78, done)
        self.assertRegex(done.causes()[0], r"distributed.device: cuda, but rank 0 \(.*\): .*none.so.*; write device: cpu or auto")
        self.assertFalse((self.folder / "run").exists(), "nothing was written")

    def test_the_module_itself_opens_on_a_machine_without_a_driver(self):
        if MODULE is None:
            self.skipTest("built without the CUDA Toolkit")
        if pathlib.Path("/dev/nvidiactl").exists():
            self.skipTest("a device is here")
        done = self.train("auto", *SMALL, "training.max_steps=1", env={"LLM_CUDA_MODULE": str(MODULE)})
        self.assertIn("no device: CUDA driver version is insufficient for CUDA runtime version", done.out)

    def test_nccl_is_refused_where_ranks_are_on_the_cpu(self):
        done = self.llm_train(*program.TINY, "distributed.backend=nccl", f"data.dataset_path={self.text()}", "logging.run_dir=run",
                              env={"LLM_CUDA_MODULE": str(self.folder / "none.so")})
        self.assertEqual(done.code, 78, done)
        self.assertIn("nccl, but this rank sees 0 devices; write backend: mpi or remove the line", done.causes()[0])

    def test_a_rank_alone_gives_nccl_nothing_to_add_and_going_on_tells_the_change(self):
        saves = ["checkpoint.save_interval_steps=1", "training.scheduler_type=constant", "training.run_validation=false"]
        self.train("whole", *SMALL, CUDA, *saves, "training.max_steps=2", env=EMULATED, timeout=120)
        self.train("part", *SMALL, CUDA, *saves, "training.max_steps=1", env=EMULATED, timeout=120)
        done = self.train("part", *SMALL, CUDA, *saves, "training.max_steps=2", "checkpoint.resume_from_checkpoint=auto",
                          "distributed.collectives=nccl", env=EMULATED, timeout=120)
        self.assertIn("since the checkpoint: distributed.collectives plan -> nccl", done.out)
        self.assertNotIn("added up by NCCL", done.out)
        self.assertTrue(self.weights("part") == self.weights("whole"))

    def test_a_trace_shows_the_devices_ops(self):
        self.train("run", *SMALL, CUDA, "training.max_steps=1", "--trace", "trace", env=EMULATED, timeout=120)
        text = "".join(path.read_text() for path in (self.folder / "trace").iterdir())
        for op in ("attention_forward", "adamw", "linear_backward_weight"):
            self.assertIn(f'"{op}"', text)


program.main()

"""float32, bfloat16 and float16 in whole runs: what the start says, the loss scale, and the same curve."""
import program

DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class Precision(program.ProgramTest):
    def test_each_precision_says_what_it_is_and_trains_near_float32(self):
        losses = {}
        for name, short in DTYPES.items():
            done = self.train(name, f"optimization.amp_dtype={name}", "training.max_steps=20", ranks=2)
            self.assertIn(f"parameters, {short}, global batch", done.out)
            losses[name] = self.losses(name)
            scales = [line.get("loss_scale") for line in self.metrics(name)]
            self.assertEqual(scales, [65536 if name == "float16" else None] * 20)
        for name in ("bfloat16", "float16"):
            for low, exact in zip(losses[name], losses["float32"]):
                self.assertLess(abs(low - exact), 0.01 * exact, losses)
            self.assertNotEqual(losses[name], losses["float32"])

    def test_use_amp_false_is_float32(self):
        done = self.train("run", "optimization.use_amp=false", "optimization.amp_dtype=float16")
        self.assertIn("parameters, f32, global batch", done.out)

    def test_an_overflow_is_skipped_and_said_and_the_scale_halves(self):
        done = self.train("run", "optimization.amp_dtype=float16", "optimization.loss_scale_init=16777216",
                          "training.max_steps=12", ranks=2)
        steps = self.metrics("run")
        n_skipped = sum(line["skipped"] for line in steps)
        self.assertGreater(n_skipped, 0)
        self.assertLess(n_skipped, 12)
        self.assertEqual([line["skipped"] for line in steps], [True] * n_skipped + [False] * (12 - n_skipped))
        self.assertEqual([line["loss_scale"] for line in steps],
                         [2.0 ** (24 - min(i, n_skipped)) for i in range(12)])
        self.assertEqual(done.out.count("weights unchanged: the gradient is not finite"), n_skipped)
        # The rate's place does not move on a skipped step.
        self.assertEqual({line["lr"] for line in steps[:n_skipped + 1]}, {steps[0]["lr"]})

    def test_an_overflow_at_the_least_scale_ends_the_run(self):
        done = self.llm_train(*program.TINY, f"data.dataset_path={self.text()}", "optimization.amp_dtype=float16",
                              "optimization.loss_scale_init=16777216", "optimization.loss_scale_min=16777216", ranks=2)
        self.assertEqual(done.code, 70, done)
        self.assertEqual(len(done.causes()), 1, done)
        self.assertRegex(done.causes()[0], r"error: rank [01]: step 1: gradients overflow float16 .*loss_scale_min")

    def test_bits_do_not_depend_on_ranks_in_any_precision(self):
        for name in DTYPES:
            precision = f"optimization.amp_dtype={name}"
            self.train(f"{name}-1", precision, "optimization.gradient_accumulation_steps=2")
            self.train(f"{name}-2", precision, ranks=2)
            self.assertEqual(self.weights(f"{name}-1"), self.weights(f"{name}-2"), name)
            self.assertEqual(self.losses(f"{name}-1"), self.losses(f"{name}-2"), name)


if __name__ == "__main__":
    program.main()

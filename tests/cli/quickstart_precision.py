"""The quickstart in bfloat16 and float16 reaches float32's loss within 1 %: the suite "full"."""
import program

N_STEPS = 40


class Quickstart(program.ProgramTest):
    def test_the_quickstart_reaches_the_same_loss_in_every_precision(self):
        last = {}
        for name in ("float32", "bfloat16", "float16"):
            text = f"data.dataset_path={program.ROOT}/src/**/*.{{h,cpp}}"
            done = self.llm_train("--config-path", program.ROOT / "configs/quickstart.yaml", text,
                                  f"optimization.amp_dtype={name}", f"training.max_steps={N_STEPS}",
                                  "training.run_validation=false", f"logging.run_dir={name}", ranks=2, timeout=600)
            self.assertEqual(done.code, 0, done)
            losses = self.losses(name)
            last[name] = sum(losses[-10:]) / 10
        print(f"mean loss of the last 10 of {N_STEPS} steps: {last}")
        for name in ("bfloat16", "float16"):
            self.assertLess(abs(last[name] - last["float32"]), 0.01 * last["float32"], last)


if __name__ == "__main__":
    program.main()

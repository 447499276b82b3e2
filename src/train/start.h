#pragma once
#include <memory>
#include <string>
#include <vector>

#include "src/comm/mpi/mpi_session.h"
#include "src/config/load.h"
#include "src/io/hf_config.h"
#include "src/train/rank_facts.h"
#include "src/train/run.h"
#include "src/train/run_lock.h"
#include "src/train/settings.h"

namespace llm {

/// The configuration that the request names, with what this process's environment says.
LoadedConfig load(const RunRequest& request);

/// What rank 0 decides before anything else, and all ranks share.
struct Start {
  LoadedConfig loaded;
  Settings settings;
  std::string run_dir;
  std::string yaml;
  std::string schedule;                         // the text of distributed.pp_schedule's file
  HfTokenIds ids;                               // of model.init_from or the checkpoint, on rank 0
  std::string checkpoint;                       // to go on from; empty: afresh
  std::vector<std::string> changes;             // of numbers, since it was saved; on rank 0
  std::string suffix;                           // of this start's files in run_dir
  std::string backend = "mpi";                  // who carries tensors: mpi or nccl
  std::vector<RankFacts> facts;                 // of all ranks, on rank 0
  std::vector<std::unique_ptr<RunLock>> locks;  // of the folders the run writes, on rank 0
};

/// Every rank calls it. Refuses what cannot work before any data is read: ranks that were not
/// started alike, a configuration or a layout that does not fit them, folders that are not theirs
/// alone or that not all nodes see. Throws ConfigError, DataError, FileError.
Start begin(const MpiSession& session, const RunRequest& request);

}  // namespace llm

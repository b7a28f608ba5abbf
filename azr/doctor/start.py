"""Whether a run can start on this machine, checked before anything starts."""

from __future__ import annotations

from azr.config import Config
from azr.doctor.gpus import Gpus
from azr.errors import UserError
from azr.plan.inputs import ClusterSpec
from azr.plan.planner import check_memory


def check_machine(config: Config, gpus: Gpus) -> None:
    """Raise UserError when Ray, or a run on a GPU, cannot start on this machine.

    Checks nothing for a run that joins a cluster.
    """
    if config.cluster.address is not None:
        return
    if config.train.device == "cuda" and not gpus.all:
        why = gpus.error or ("nvidia-smi lists none" if gpus.has_smi else "there is no nvidia-smi")
        raise UserError(
            f"train.device is cuda, but no GPU was found on this machine ({why}): set it to auto or cpu, or join a "
            "cluster that has GPUs by cluster.address."
        )
    from azr.cluster.ray_start import check_socket_paths  # Only now, because Ray takes a second to load.

    check_socket_paths()


def check_fit(config: Config, gpus: Gpus, *, suppose: bool = False) -> list[str]:
    """Compare the run with the largest GPU of this machine, see `azr.plan.planner.check_memory`. Return warnings.

    Returns none for a run on a CPU. Without GPUs here, or for a cluster, the GPUs are not known yet: returns none
    either, but with `suppose` compares the run with 80 GB GPUs.
    """
    if config.train.device == "cpu":
        return []
    if gpus.all and config.cluster.address is None:
        return check_memory(config, max(gpu.total_mib for gpu in gpus.all) / 1024)
    return check_memory(config, ClusterSpec.with_gpus(config.num_gpus).gpu_memory_gib) if suppose else []

"""KernBench's collective kernels: ``ccl.yaml``, what each PE installs, and the Plans that come of it.

Light: the names of ``megatile.collectives`` that are defined here.
"""

_NAMES = {
    "config": ("load_ccl_config", "resolve_algorithm_config"),
    "diagnostics": ("pointer_dump",),
    "install": (
        "InstalledQueues",
        "NeighborTableEntry",
        "PeInstallSpec",
        "SipInstallPlan",
        "build_install_plans",
        "configure_sfr",
        "configure_sfr_intercube_multisip",
    ),
    "kernel_plans": ("kernel_plan", "plan_of_module"),
    "topologies": ("resolve_mapper", "resolve_topology", "resolve_validator"),
}
NAMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

# From Kolo's folder:
#   spack repo add cmake/spack
#   spack dev-build kolo@main          # or kolo@main ~torch, kolo@main +cuda cuda_arch=90
try:  # Spack 1.0 and newer
    from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
    from spack_repo.builtin.build_systems.cuda import CudaPackage
except ImportError:
    pass
from spack.package import *


class Kolo(CMakePackage, CudaPackage):
    """Collective communication and distributed training with LibTorch and MPI."""

    version("main")

    variant("shared", default=True, description="Shared libraries")
    variant("torch", default=True, description="kolo::kolo and kolo::extras, which need LibTorch")
    variant("bench", default=True, description="kolo-bench and the examples")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("mpi@3.1:")
    depends_on("highway@1.0:")
    depends_on("flatbuffers@2:", type="build")
    depends_on("xxhash@0.8:", type="build")
    depends_on("nlohmann-json@3.10:")
    depends_on("cli11@2:", type="build", when="+bench")
    depends_on("py-torch@2.6:", when="+torch")
    depends_on("cuda@12.4:", when="+cuda")
    depends_on("nccl@2.18:", when="+cuda")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPUs: cuda_arch=90")

    generator("ninja")

    def cmake_args(self):
        args = [
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define_from_variant("KOLO_WITH_TORCH", "torch"),
            self.define_from_variant("KOLO_WITH_CUDA", "cuda"),
            self.define_from_variant("KOLO_BUILD_EXAMPLES", "bench"),
            self.define("KOLO_BUILD_TESTS", False),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.builder.define_cuda_architectures(self))
        return args

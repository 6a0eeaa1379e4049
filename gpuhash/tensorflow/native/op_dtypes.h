// The dtypes of keys and values, as the attributes of ops name them.
#pragma once

namespace gpuhash::tensorflow_ops {

inline constexpr const char* kKeyDtypes = "{int8, uint8, int16, uint16, int32, uint32, int64, uint64}";
inline constexpr const char* kValueDtypes =
    "{bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, half, bfloat16, float, double, complex64, "
    "complex128}";

}  // namespace gpuhash::tensorflow_ops

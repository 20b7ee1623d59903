#pragma once

namespace kolo::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kIsThreadSanitized = true;
#else
inline constexpr bool kIsThreadSanitized = false;
#endif

/// Whether the tests run under a sanitizer, which makes them up to ten times slower. It looks at
/// accesses, not at values: fewer values, sizes and seeds suffice then.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace kolo::test

// What macros of a program must leave alone. Without #pragma once: each header that has such names
// checks again, since X11's may have come between.

#if defined(Bool) || defined(InputOutput) || defined(None)
#error "X11 defines Bool, InputOutput and None: include Kolo's headers before it, or #undef these"
#endif

#if defined(KOLO_CXX11_ABI) && defined(_GLIBCXX_USE_CXX11_ABI)
#if KOLO_CXX11_ABI != _GLIBCXX_USE_CXX11_ABI
#error "Kolo was built with another _GLIBCXX_USE_CXX11_ABI: build both with the same one"
#endif
#endif

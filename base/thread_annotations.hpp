// Annotations for the thread-safety analysis of Clang. They say which lock guards a member, and
// which lock a function needs. Clang checks them with -Wthread-safety; other compilers ignore them.
#pragma once

#if defined(__clang__)
#define CAIRN_THREAD_ANNOTATION(annotation) __attribute__((annotation))
#else
#define CAIRN_THREAD_ANNOTATION(annotation)
#endif

// Annotations of types.
#define CAIRN_CAPABILITY(name) CAIRN_THREAD_ANNOTATION(capability(name))
#define CAIRN_SCOPED_CAPABILITY CAIRN_THREAD_ANNOTATION(scoped_lockable)

// Annotations of members and variables. The lock must be held to read or write the variable.
#define CAIRN_GUARDED_BY(mutex) CAIRN_THREAD_ANNOTATION(guarded_by(mutex))

// Annotations of functions and lambdas, written after the parameters.
#define CAIRN_REQUIRES(...) CAIRN_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))  // the caller must hold the lock
#define CAIRN_ACQUIRE(...) CAIRN_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define CAIRN_TRY_ACQUIRE(...) CAIRN_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define CAIRN_RELEASE(...) CAIRN_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define CAIRN_REQUIRES_SHARED(...) CAIRN_THREAD_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define CAIRN_ACQUIRE_SHARED(...) CAIRN_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define CAIRN_RELEASE_SHARED(...) CAIRN_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))

// Turns the analysis off in the body of a function. Say why at each use.
#define CAIRN_NO_THREAD_SAFETY_ANALYSIS CAIRN_THREAD_ANNOTATION(no_thread_safety_analysis)

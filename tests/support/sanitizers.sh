# Sourced by tests/run.sh: how the sanitizers run here. Other builds ignore these variables.
support=$(readlink -f "$(dirname "${BASH_SOURCE[0]}")")
# LibTorch and Protobuf are not instrumented, so that checks across libraries give false alarms: container-overflow for containers
# that they fill, odr violations for what both they and the test binaries define.
export ASAN_OPTIONS="detect_leaks=1:detect_container_overflow=0:detect_odr_violation=0:strict_string_checks=1:check_initialization_order=0:allocator_may_return_null=1"
export LSAN_OPTIONS="suppressions=$support/leaks.supp:print_suppressions=0"
export UBSAN_OPTIONS="print_stacktrace=1"
export TSAN_OPTIONS="allocator_may_return_null=1:suppressions=$support/races.supp:second_deadlock_stack=1:history_size=4"

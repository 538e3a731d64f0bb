
# What follows is only in the build for the fuzzer.
$(filter-out perfctr_core.o,$(obj-y)): CFLAGS-y += -fsanitize-coverage=trace-pc
obj-y += coverage.o


# What follows is only in the build for the fuzzer.
$(addprefix $(obj)/,$(filter-out perfctr_core.o,$(obj-y))): CFLAGS-y += -fsanitize-coverage=trace-pc
obj-y += coverage.o

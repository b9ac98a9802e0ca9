# Begins every hart on a stack of its own, without traps or interrupts, and counts instructions.
# QEMU's virt board, machine mode: -bios none starts here.

    .section .text.start
    .globl _start
_start:
    csrr a0, mhartid
    la sp, stacks
    addi t0, a0, 1
    slli t0, t0, 14
    add sp, sp, t0
    la t1, trapped
    csrw mtvec, t1
    call hart_main
1:  j 1b

# A fault of the driver's: ends the machine with an error.
    .balign 4
trapped:
    li t0, 0x100000
    li t1, 0x3333 | 1 << 16
    sw t1, 0(t0)
    j trapped

# uint64_t counted_receive(kernel, worker, int* result), counted_send(kernel, sender, result): instructions
# between the two readings of the counter, the call itself included. Calls of an empty function say how many
# are the counting's own. It lies beside the kernel, so that the log of addresses shows where counting begins and
# ends.
    .section .text.dpa.calibration, "ax"
    .globl counted_receive, counted_send, count_begins, count_ends
counted_receive:
counted_send:
    addi sp, sp, -32
    sd ra, 0(sp)
    sd s0, 8(sp)
    sd s1, 16(sp)
    mv s1, a2
    mv t0, a0
    mv a0, a1
count_begins:
    csrr s0, minstret
    jalr t0
count_ends:
    csrr a1, minstret
    sw a0, 0(s1)
    sub a0, a1, s0
    ld ra, 0(sp)
    ld s0, 8(sp)
    ld s1, 16(sp)
    addi sp, sp, 32
    ret

# A loop of known length, 2 instructions a turn and 2 more, and an empty function. The argument is the turns.
    .section .text.dpa.calibration, "ax"
    .globl calibration_loop
calibration_loop:
    addi a0, a0, -1
    bnez a0, calibration_loop
    li a0, 0
    ret
    .globl calibration_empty
calibration_empty:
    ret

/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A firmware of 64 KiB that counts on the first serial port, in real mode: the smallest guest that shows whether a
 * restored machine goes on where its snapshot stood. It needs no kernel, so it runs where /dev/kvm can't carry one.
 *
 * The ROM isn't part of a snapshot, so the code copies itself to RAM first and never comes back. The counter lives in
 * RAM and is never printed twice by one machine: "00000001\n00000002\n…". */

        .code16
        .section .text
        .globl _start

        .set LOAD, 0x7000

_start: cli
        xorw    %ax, %ax
        movw    %ax, %es
        movw    %ax, %ss
        movw    $LOAD, %sp
        movw    %cs, %ax
        movw    %ax, %ds
        movw    $body, %si
        movw    $LOAD, %di
        movw    $(body_end - body), %cx
        cld
        rep movsb
        ljmpw   $0, $LOAD

body:   movw    %cs, %ax
        movw    %ax, %ds
        xorl    %ebx, %ebx
next:   incl    %ebx
        movl    %ebx, LOAD + (counter - body)
        movw    $8, %cx
digit:  roll    $4, %ebx
        movb    %bl, %al
        andb    $0x0f, %al
        addb    $'0', %al
        cmpb    $'9', %al
        jbe     1f
        addb    $('a' - '9' - 1), %al
1:      movw    $0x3f8, %dx
        outb    %al, %dx
        loop    digit
        movb    $'\n', %al
        outb    %al, %dx
        movw    $0x0800, %cx    /* some hundred lines in a second, under KVM and TCG alike */
2:      inb     $0x80, %al
        loop    2b
        movl    LOAD + (counter - body), %ebx
        jmp     next
counter: .long  0
body_end:

        .org    0xfff0
        ljmpw   $0xf000, $_start
        .org    0xffff
        .byte   0

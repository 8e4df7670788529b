//! Instructions, decoded from the disassembler's text: no encoding tables, and whatever the text holds that
//! is not known here is an error, never skipped.

use std::{collections::HashMap, sync::OnceLock};

use crate::architecture::Names;

/// A source of an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    None,
    Vector(u8),
    Scalar(u8),
    /// As wide as the instruction reads it.
    Constant(u64),
    /// A vector register as it was when [`Op::VKeep`] looked.
    Kept,
}

/// A destination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    None,
    Vector(u8),
    Scalar(u8),
}

/// Scalar registers with names.
pub(crate) const VCC: u8 = 106;
pub(crate) const M0: u8 = 124;
pub(crate) const EXEC: u8 = 126;

/// Which part of a register an operand is (SDWA).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Part {
    Whole,
    Byte(u8),
    Word(u8),
}

/// What becomes of the rest of a destination of which a part is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rest {
    Zero,
    SignExtended,
    Kept,
}

/// Changes to operands on their way in and out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Modifiers {
    /// Bit k: source k.
    pub(crate) negate: u8,
    pub(crate) absolute: u8,
    pub(crate) signed: u8,
    pub(crate) part: [Part; 2],
    pub(crate) target: Part,
    pub(crate) rest: Rest,
    /// Packed instructions: which half of each source the low and the high result take.
    pub(crate) low: u8,
    pub(crate) high: u8,
}

const PLAIN: Modifiers = Modifiers {
    negate: 0,
    absolute: 0,
    signed: 0,
    part: [Part::Whole; 2],
    target: Part::Whole,
    rest: Rest::Zero,
    low: 0,
    high: 7,
};

/// A decoded instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub(crate) op: Op,
    pub(crate) target: Target,
    /// Carry, or the scaling flag of a division.
    pub(crate) second: Target,
    pub(crate) source: [Source; 3],
    /// Offset of an address, index of the instruction branched to, or what is waited for.
    pub(crate) value: i32,
    /// Bytes that a memory instruction moves a lane, or dwords that a scalar load does.
    pub(crate) width: u8,
    /// `sc0` and `sc1`; what others call `glc` is the first.
    pub(crate) scope: u8,
    pub(crate) modified: bool,
    pub(crate) modifiers: Modifiers,
    /// Where it stands in the code object.
    pub(crate) address: u32,
}

pub(crate) const SC0: u8 = 1;
pub(crate) const SC1: u8 = 2;
const NT: u8 = 4;

macro_rules! operations {
    ($($name:ident $op:ident $operands:ident)*) => {
        /// Operations, of one spelling a form.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Op { $($op),* }
        const OPERATIONS: &[(&str, Op, &str)] = &[$((stringify!($name), Op::$op, stringify!($operands))),*];
    };
}

// Operands: T target, S second target, C target that is a source too; then the sources by what they are: b 32 bits,
// l 64 bits, L 64 bits signed, w 16 bits, f h d floats of 32, 16 and 64 bits, p a pair of floats. Others are read by
// code of their own: J a branch, N a number, Q and V what is waited for, M memory, X loads to scalars, Z none, G and R
// messages, H a hint of any kind.
operations! {
    s_nop Nop N  s_sleep Sleep N  s_setprio SetPriority N  s_endpgm End Z  s_barrier Barrier Z  s_waitcnt Wait Q
    s_branch Branch J  s_cbranch_execz BranchExecZ J  s_cbranch_execnz BranchExecNz J
    s_cbranch_scc0 BranchScc0 J  s_cbranch_scc1 BranchScc1 J
    s_cbranch_vccz BranchVccZ J  s_cbranch_vccnz BranchVccNz J
    s_mov_b32 SMov Tb  s_movk_i32 SMovK Tb  s_mov_b64 SMov64 Tl  s_cmov_b32 SCMov Tb  s_cmov_b64 SCMov64 Tl
    s_add_u32 SAddU Tbb  s_add_i32 SAddI Tbb  s_addc_u32 SAddC Tbb  s_sub_u32 SSubU Tbb  s_sub_i32 SSubI Tbb
    s_subb_u32 SSubB Tbb  s_addk_i32 SAddK Cb  s_mulk_i32 SMulK Cb
    s_mul_i32 SMul Tbb  s_mul_hi_u32 SMulHiU Tbb  s_mul_hi_i32 SMulHiI Tbb
    s_and_b32 SAnd Tbb  s_or_b32 SOr Tbb  s_xor_b32 SXor Tbb  s_andn2_b32 SAndN2 Tbb  s_orn2_b32 SOrN2 Tbb
    s_nand_b32 SNand Tbb  s_nor_b32 SNor Tbb  s_xnor_b32 SXnor Tbb
    s_and_b64 SAnd64 Tll  s_or_b64 SOr64 Tll  s_xor_b64 SXor64 Tll  s_andn2_b64 SAndN264 Tll
    s_orn2_b64 SOrN264 Tll  s_nand_b64 SNand64 Tll  s_nor_b64 SNor64 Tll  s_xnor_b64 SXnor64 Tll
    s_lshl_b32 SLshl Tbb  s_lshr_b32 SLshr Tbb  s_ashr_i32 SAshr Tbb
    s_lshl_b64 SLshl64 Tlb  s_lshr_b64 SLshr64 Tlb  s_ashr_i64 SAshr64 Tlb
    s_lshl1_add_u32 SLshl1Add Tbb  s_lshl2_add_u32 SLshl2Add Tbb  s_lshl3_add_u32 SLshl3Add Tbb
    s_lshl4_add_u32 SLshl4Add Tbb
    s_bfm_b32 SBfm Tbb  s_bfe_u32 SBfeU Tbb  s_bfe_i32 SBfeI Tbb  s_bfe_u64 SBfeU64 Tlb  s_bfe_i64 SBfeI64 Tlb
    s_min_u32 SMinU Tbb  s_max_u32 SMaxU Tbb  s_min_i32 SMinI Tbb  s_max_i32 SMaxI Tbb
    s_cselect_b32 SCSelect Tbb  s_cselect_b64 SCSelect64 Tll
    s_pack_ll_b32_b16 SPackLL Tbb  s_pack_lh_b32_b16 SPackLH Tbb  s_pack_hh_b32_b16 SPackHH Tbb
    s_not_b32 SNot Tb  s_not_b64 SNot64 Tl  s_brev_b32 SBrev Tb  s_abs_i32 SAbs Tb
    s_sext_i32_i8 SSext8 Tb  s_sext_i32_i16 SSext16 Tb
    s_bcnt1_i32_b32 SBcnt1 Tb  s_bcnt1_i32_b64 SBcnt164 Tl  s_ff1_i32_b32 SFf1 Tb  s_ff1_i32_b64 SFf164 Tl
    s_flbit_i32_b32 SFlbit Tb  s_flbit_i32_b64 SFlbit64 Tl
    s_bitset0_b32 SBitset0 Cb  s_bitset1_b32 SBitset1 Cb
    s_and_saveexec_b64 SAndSaveExec Tl  s_or_saveexec_b64 SOrSaveExec Tl  s_xor_saveexec_b64 SXorSaveExec Tl
    s_andn2_saveexec_b64 SAndN2SaveExec Tl  s_orn2_saveexec_b64 SOrN2SaveExec Tl
    s_andn1_saveexec_b64 SAndN1SaveExec Tl
    s_cmp_eq_i32 SCmpEqI bb  s_cmp_lg_i32 SCmpLgI bb  s_cmp_gt_i32 SCmpGtI bb  s_cmp_ge_i32 SCmpGeI bb
    s_cmp_lt_i32 SCmpLtI bb  s_cmp_le_i32 SCmpLeI bb
    s_cmp_eq_u32 SCmpEqU bb  s_cmp_lg_u32 SCmpLgU bb  s_cmp_gt_u32 SCmpGtU bb  s_cmp_ge_u32 SCmpGeU bb
    s_cmp_lt_u32 SCmpLtU bb  s_cmp_le_u32 SCmpLeU bb  s_cmp_eq_u64 SCmpEqU64 ll  s_cmp_lg_u64 SCmpLgU64 ll
    s_cmpk_eq_i32 SCmpKEqI bb  s_cmpk_lg_i32 SCmpKLgI bb  s_cmpk_gt_i32 SCmpKGtI bb  s_cmpk_ge_i32 SCmpKGeI bb
    s_cmpk_lt_i32 SCmpKLtI bb  s_cmpk_le_i32 SCmpKLeI bb
    s_cmpk_eq_u32 SCmpKEqU bb  s_cmpk_lg_u32 SCmpKLgU bb  s_cmpk_gt_u32 SCmpKGtU bb  s_cmpk_ge_u32 SCmpKGeU bb
    s_cmpk_lt_u32 SCmpKLtU bb  s_cmpk_le_u32 SCmpKLeU bb
    s_bitcmp0_b32 SBitCmp0 bb  s_bitcmp1_b32 SBitCmp1 bb  s_bitcmp0_b64 SBitCmp064 lb  s_bitcmp1_b64 SBitCmp164 lb
    s_getpc_b64 SGetPc T
    s_load_dword SLoad X  s_load_dwordx2 SLoad2 X  s_load_dwordx4 SLoad4 X  s_load_dwordx8 SLoad8 X
    s_load_dwordx16 SLoad16 X  s_memtime SMemTime T  s_memrealtime SMemRealTime T
    s_dcache_inv SDcacheInv Z  s_icache_inv SIcacheInv Z
    s_waitcnt_vscnt WaitStores V  s_delay_alu Delay H  s_clause Clause H  s_waitcnt_depctr WaitHazard H
    s_set_inst_prefetch_distance Prefetch H  s_code_end CodeEnd Z  s_sendmsg Message G  s_sendmsg_rtn_b64 MessageTime R

    kept_by_pairs VKeep b  v_nop VNop Z  v_mov_b32 VMov Tb  v_mov_b64 VMov64 Tl  v_not_b32 VNot Tb  v_bfrev_b32 VBfrev Tb
    v_ffbl_b32 VFfbl Tb  v_ffbh_u32 VFfbhU Tb  v_ffbh_i32 VFfbhI Tb  v_bcnt_u32_b32 VBcnt Tbb
    v_readfirstlane_b32 VReadFirstLane Tb  v_readlane_b32 VReadLane Tbb  v_writelane_b32 VWriteLane Tbb
    v_mbcnt_lo_u32_b32 VMbcntLo Tbb  v_mbcnt_hi_u32_b32 VMbcntHi Tbb
    v_add_u32 VAddU Tbb  v_sub_u32 VSubU Tbb  v_subrev_u32 VSubRevU Tbb
    v_add_co_u32 VAddCo TSbb  v_sub_co_u32 VSubCo TSbb  v_subrev_co_u32 VSubRevCo TSbb
    v_addc_co_u32 VAddC TSbbl  v_subb_co_u32 VSubB TSbbl  v_subbrev_co_u32 VSubBRev TSbbl
    v_and_b32 VAnd Tbb  v_or_b32 VOr Tbb  v_xor_b32 VXor Tbb  v_xnor_b32 VXnor Tbb
    v_lshlrev_b32 VLshlRev Tbb  v_lshrrev_b32 VLshrRev Tbb  v_ashrrev_i32 VAshrRev Tbb
    v_lshlrev_b64 VLshlRev64 Tbl  v_lshrrev_b64 VLshrRev64 Tbl  v_ashrrev_i64 VAshrRev64 Tbl
    v_lshl_add_u64 VLshlAdd64 TlbL
    v_lshl_add_u32 VLshlAdd Tbbb  v_add_lshl_u32 VAddLshl Tbbb  v_lshl_or_b32 VLshlOr Tbbb  v_and_or_b32 VAndOr Tbbb
    v_or3_b32 VOr3 Tbbb  v_add3_u32 VAdd3 Tbbb  v_xad_u32 VXad Tbbb
    v_min_u32 VMinU Tbb  v_max_u32 VMaxU Tbb  v_min_i32 VMinI Tbb  v_max_i32 VMaxI Tbb
    v_min3_u32 VMin3U Tbbb  v_max3_u32 VMax3U Tbbb  v_min3_i32 VMin3I Tbbb  v_max3_i32 VMax3I Tbbb
    v_med3_u32 VMed3U Tbbb  v_med3_i32 VMed3I Tbbb
    v_bfe_u32 VBfeU Tbbb  v_bfe_i32 VBfeI Tbbb  v_bfi_b32 VBfi Tbbb  v_bfm_b32 VBfm Tbb
    v_alignbit_b32 VAlignBit Tbbb  v_alignbyte_b32 VAlignByte Tbbb  v_perm_b32 VPerm Tbbb
    v_cndmask_b32 VCndMask Tffl
    v_mul_lo_u32 VMulLo Tbb  v_mul_hi_u32 VMulHiU Tbb  v_mul_hi_i32 VMulHiI Tbb
    v_mul_u32_u24 VMulU24 Tbb  v_mul_i32_i24 VMulI24 Tbb  v_mad_u32_u24 VMadU24 Tbbb  v_mad_i32_i24 VMadI24 Tbbb
    v_mul_hi_u32_u24 VMulHiU24 Tbb
    v_mad_u64_u32 VMadU64 TSbbl  v_mad_i64_i32 VMadI64 TSbbL
    v_lshlrev_b16 VLshlRev16 Tww  v_lshrrev_b16 VLshrRev16 Tww  v_ashrrev_i16 VAshrRev16 Tww
    v_add_u16 VAddU16 Tww  v_sub_u16 VSubU16 Tww  v_subrev_u16 VSubRevU16 Tww  v_mul_lo_u16 VMulLo16 Tww
    v_mad_legacy_u16 VMadU16 Twww  v_mad_u16 VMadU16B Twww
    v_min_u16 VMinU16 Tww  v_max_u16 VMaxU16 Tww  v_min_i16 VMinI16 Tww  v_max_i16 VMaxI16 Tww
    v_pack_b32_f16 VPack Thh
    v_add_f32 VAddF Tff  v_sub_f32 VSubF Tff  v_subrev_f32 VSubRevF Tff  v_mul_f32 VMulF Tff
    v_min_f32 VMinF Tff  v_max_f32 VMaxF Tff  v_fma_f32 VFmaF Tfff  v_fmac_f32 VFmacF Cff
    v_fmamk_f32 VFmamkF Tfff  v_fmaak_f32 VFmaakF Tfff
    v_mac_f32 VMacF Cff  v_mad_f32 VMadF Tfff  v_madmk_f32 VMadmkF Tfff  v_madak_f32 VMadakF Tfff
    v_pk_add_f32 VPkAddF Tpp  v_pk_mul_f32 VPkMulF Tpp  v_pk_fma_f32 VPkFmaF Tppp  v_pk_mov_b32 VPkMov Tpp
    v_rcp_f32 VRcpF Tf  v_rcp_iflag_f32 VRcpIflagF Tf  v_trunc_f32 VTruncF Tf  v_floor_f32 VFloorF Tf
    v_ceil_f32 VCeilF Tf  v_rndne_f32 VRndneF Tf  v_ldexp_f32 VLdexpF Tfb
    v_div_scale_f32 VDivScaleF TSfff  v_div_fmas_f32 VDivFmasF Tfff  v_div_fixup_f32 VDivFixupF Tfff
    v_add_f64 VAddD Tdd  v_mul_f64 VMulD Tdd  v_min_f64 VMinD Tdd  v_max_f64 VMaxD Tdd
    v_fma_f64 VFmaD Tddd  v_fmac_f64 VFmacD Cdd  v_rcp_f64 VRcpD Td  v_ldexp_f64 VLdexpD Tdb  v_trunc_f64 VTruncD Td
    v_floor_f64 VFloorD Td  v_rndne_f64 VRndneD Td
    v_div_scale_f64 VDivScaleD TSddd  v_div_fmas_f64 VDivFmasD Tddd  v_div_fixup_f64 VDivFixupD Tddd
    v_cvt_f32_u32 VCvtFU Tb  v_cvt_f32_i32 VCvtFI Tb  v_cvt_u32_f32 VCvtUF Tf  v_cvt_i32_f32 VCvtIF Tf
    v_cvt_f64_u32 VCvtDU Tb  v_cvt_f64_i32 VCvtDI Tb  v_cvt_u32_f64 VCvtUD Td  v_cvt_i32_f64 VCvtID Td
    v_cvt_f32_f64 VCvtFD Td  v_cvt_f64_f32 VCvtDF Tf  v_cvt_f32_f16 VCvtFH Th  v_cvt_f16_f32 VCvtHF Tf
    v_cvt_f32_ubyte0 VCvtFUbyte0 Tb  v_cvt_f32_ubyte1 VCvtFUbyte1 Tb  v_cvt_f32_ubyte2 VCvtFUbyte2 Tb
    v_cvt_f32_ubyte3 VCvtFUbyte3 Tb
    v_cmp_eq_u32 VCmpEqU Tbb  v_cmp_ne_u32 VCmpNeU Tbb  v_cmp_lt_u32 VCmpLtU Tbb  v_cmp_le_u32 VCmpLeU Tbb
    v_cmp_gt_u32 VCmpGtU Tbb  v_cmp_ge_u32 VCmpGeU Tbb
    v_cmp_eq_i32 VCmpEqI Tbb  v_cmp_ne_i32 VCmpNeI Tbb  v_cmp_lt_i32 VCmpLtI Tbb  v_cmp_le_i32 VCmpLeI Tbb
    v_cmp_gt_i32 VCmpGtI Tbb  v_cmp_ge_i32 VCmpGeI Tbb
    v_cmp_eq_u64 VCmpEqU64 Tll  v_cmp_ne_u64 VCmpNeU64 Tll  v_cmp_lt_u64 VCmpLtU64 Tll  v_cmp_le_u64 VCmpLeU64 Tll
    v_cmp_gt_u64 VCmpGtU64 Tll  v_cmp_ge_u64 VCmpGeU64 Tll
    v_cmp_eq_i64 VCmpEqI64 TLL  v_cmp_ne_i64 VCmpNeI64 TLL  v_cmp_lt_i64 VCmpLtI64 TLL  v_cmp_le_i64 VCmpLeI64 TLL
    v_cmp_gt_i64 VCmpGtI64 TLL  v_cmp_ge_i64 VCmpGeI64 TLL
    v_cmp_eq_u16 VCmpEqU16 Tww  v_cmp_ne_u16 VCmpNeU16 Tww  v_cmp_lt_u16 VCmpLtU16 Tww  v_cmp_le_u16 VCmpLeU16 Tww
    v_cmp_gt_u16 VCmpGtU16 Tww  v_cmp_ge_u16 VCmpGeU16 Tww
    v_cmp_lt_i16 VCmpLtI16 Tww  v_cmp_le_i16 VCmpLeI16 Tww  v_cmp_gt_i16 VCmpGtI16 Tww  v_cmp_ge_i16 VCmpGeI16 Tww
    v_cmp_eq_f32 VCmpEqF Tff  v_cmp_lg_f32 VCmpLgF Tff  v_cmp_neq_f32 VCmpNeqF Tff  v_cmp_lt_f32 VCmpLtF Tff
    v_cmp_le_f32 VCmpLeF Tff  v_cmp_gt_f32 VCmpGtF Tff  v_cmp_ge_f32 VCmpGeF Tff  v_cmp_u_f32 VCmpUF Tff
    v_cmp_o_f32 VCmpOF Tff  v_cmp_nlt_f32 VCmpNltF Tff  v_cmp_nle_f32 VCmpNleF Tff  v_cmp_ngt_f32 VCmpNgtF Tff
    v_cmp_nge_f32 VCmpNgeF Tff  v_cmp_nlg_f32 VCmpNlgF Tff
    v_cmp_eq_f64 VCmpEqD Tdd  v_cmp_lg_f64 VCmpLgD Tdd  v_cmp_neq_f64 VCmpNeqD Tdd  v_cmp_lt_f64 VCmpLtD Tdd
    v_cmp_le_f64 VCmpLeD Tdd  v_cmp_gt_f64 VCmpGtD Tdd  v_cmp_ge_f64 VCmpGeD Tdd  v_cmp_u_f64 VCmpUD Tdd
    v_cmp_o_f64 VCmpOD Tdd  v_cmp_nlt_f64 VCmpNltD Tdd  v_cmp_nle_f64 VCmpNleD Tdd  v_cmp_ngt_f64 VCmpNgtD Tdd
    v_cmp_nge_f64 VCmpNgeD Tdd  v_cmp_nlg_f64 VCmpNlgD Tdd

    load_ubyte LoadU8 M  load_sbyte LoadI8 M  load_ushort LoadU16 M  load_sshort LoadI16 M
    load_ubyte_d16 LoadU8Low M  load_ubyte_d16_hi LoadU8High M  load_sbyte_d16 LoadI8Low M
    load_sbyte_d16_hi LoadI8High M  load_short_d16 LoadLow M  load_short_d16_hi LoadHigh M
    load_dword Load M  load_dwordx2 Load2 M  load_dwordx3 Load3 M  load_dwordx4 Load4 M
    store_byte Store8 M  store_byte_d16_hi Store8High M  store_short Store16 M  store_short_d16_hi Store16High M
    store_dword Store M  store_dwordx2 Store2 M  store_dwordx3 Store3 M  store_dwordx4 Store4 M
    atomic_swap Swap M  atomic_swap_x2 Swap2 M  atomic_cmpswap CmpSwap M  atomic_cmpswap_x2 CmpSwap2 M
    atomic_add Add M  atomic_add_x2 Add2 M  atomic_sub Sub M  atomic_sub_x2 Sub2 M
    atomic_and And M  atomic_and_x2 And2 M  atomic_or Or M  atomic_or_x2 Or2 M  atomic_xor Xor M  atomic_xor_x2 Xor2 M
    atomic_umin MinU M  atomic_umin_x2 MinU2 M  atomic_umax MaxU M  atomic_umax_x2 MaxU2 M
    buffer_wbl2 WriteBack Z  buffer_inv Invalidate Z
    buffer_invl2 InvalidateLast Z  buffer_wbinvl1_vol InvalidateFirst Z  buffer_gl1_inv InvalidateSecond Z
    ds_read_b32 DsRead M  ds_read_b64 DsRead2 M  ds_read_b96 DsRead3 M  ds_read_b128 DsRead4 M
    ds_read_u8 DsReadU8 M  ds_read_i8 DsReadI8 M  ds_read_u16 DsReadU16 M  ds_read_i16 DsReadI16 M
    ds_write_b8 DsWrite8 M  ds_write_b16 DsWrite16 M  ds_write_b32 DsWrite M  ds_write_b64 DsWrite2 M
    ds_write_b96 DsWrite3 M  ds_write_b128 DsWrite4 M
    ds_read2_b32 DsReadTwo M  ds_read2_b64 DsReadTwo2 M  ds_write2_b32 DsWriteTwo M  ds_write2_b64 DsWriteTwo2 M
    ds_or_b32 DsOr M  ds_and_b32 DsAnd M  ds_add_u32 DsAdd M  ds_max_u32 DsMax M  ds_bpermute_b32 DsBpermute M
}

/// Names that only some targets know.
const NOT_OF_ALL: &[(&[Names], &[&str])] = &[
    (&[], &["kept_by_pairs"]),
    (&[Names::Gfx942], &["v_mov_b64", "v_lshl_add_u64", "buffer_inv"]),
    (&[Names::Gfx90a], &["v_mac_f32", "v_mad_f32", "v_madmk_f32", "v_madak_f32", "buffer_invl2", "buffer_wbinvl1_vol"]),
    (&[Names::Gfx90a, Names::Gfx942], &["buffer_wbl2", "s_memtime", "s_memrealtime", "v_mad_legacy_u16"]),
    (&[Names::Gfx90a, Names::Gfx942], &["v_pk_add_f32", "v_pk_mul_f32", "v_pk_fma_f32", "v_pk_mov_b32"]),
    (&[Names::Gfx1100], &["s_waitcnt_vscnt", "s_delay_alu", "s_clause", "s_waitcnt_depctr", "s_code_end"]),
    (&[Names::Gfx1100], &["s_set_inst_prefetch_distance", "s_sendmsg", "s_sendmsg_rtn_b64", "buffer_gl1_inv"]),
];

macro_rules! renamed {
    ($($name:ident $of:ident)*) => { &[$((stringify!($name), stringify!($of))),*] };
}

/// What GFX11 calls operations that GFX9 has another name for, which it does not know itself. Those on masks of lanes are
/// as wide as a wave.
const OF_GFX11: &[(&str, &str)] = renamed! {
    s_and_not1_b32 s_andn2_b32  s_or_not1_b32 s_orn2_b32  s_and_not1_b64 s_andn2_b64  s_or_not1_b64 s_orn2_b64
    s_and_saveexec_b32 s_and_saveexec_b64  s_or_saveexec_b32 s_or_saveexec_b64  s_xor_saveexec_b32 s_xor_saveexec_b64
    s_and_not1_saveexec_b32 s_andn2_saveexec_b64  s_or_not1_saveexec_b32 s_orn2_saveexec_b64
    s_and_not0_saveexec_b32 s_andn1_saveexec_b64
    s_ctz_i32_b32 s_ff1_i32_b32  s_ctz_i32_b64 s_ff1_i32_b64  s_clz_i32_u32 s_flbit_i32_b32
    s_clz_i32_u64 s_flbit_i32_b64
    s_load_b32 s_load_dword  s_load_b64 s_load_dwordx2  s_load_b128 s_load_dwordx4  s_load_b256 s_load_dwordx8
    s_load_b512 s_load_dwordx16
    v_ctz_i32_b32 v_ffbl_b32  v_clz_i32_u32 v_ffbh_u32  v_cls_i32 v_ffbh_i32
    v_add_nc_u32 v_add_u32  v_sub_nc_u32 v_sub_u32  v_subrev_nc_u32 v_subrev_u32
    v_add_co_ci_u32 v_addc_co_u32  v_sub_co_ci_u32 v_subb_co_u32  v_subrev_co_ci_u32 v_subbrev_co_u32
    v_add_nc_u16 v_add_u16  v_sub_nc_u16 v_sub_u16
    load_u8 load_ubyte  load_i8 load_sbyte  load_u16 load_ushort  load_i16 load_sshort
    load_d16_u8 load_ubyte_d16  load_d16_hi_u8 load_ubyte_d16_hi  load_d16_i8 load_sbyte_d16
    load_d16_hi_i8 load_sbyte_d16_hi  load_d16_b16 load_short_d16  load_d16_hi_b16 load_short_d16_hi
    load_b32 load_dword  load_b64 load_dwordx2  load_b96 load_dwordx3  load_b128 load_dwordx4
    store_b8 store_byte  store_d16_hi_b8 store_byte_d16_hi  store_b16 store_short  store_d16_hi_b16 store_short_d16_hi
    store_b32 store_dword  store_b64 store_dwordx2  store_b96 store_dwordx3  store_b128 store_dwordx4
    atomic_swap_b32 atomic_swap  atomic_swap_b64 atomic_swap_x2
    atomic_cmpswap_b32 atomic_cmpswap  atomic_cmpswap_b64 atomic_cmpswap_x2
    atomic_add_u32 atomic_add  atomic_add_u64 atomic_add_x2  atomic_sub_u32 atomic_sub  atomic_sub_u64 atomic_sub_x2
    atomic_and_b32 atomic_and  atomic_and_b64 atomic_and_x2  atomic_or_b32 atomic_or  atomic_or_b64 atomic_or_x2
    atomic_xor_b32 atomic_xor  atomic_xor_b64 atomic_xor_x2  atomic_min_u32 atomic_umin  atomic_min_u64 atomic_umin_x2
    atomic_max_u32 atomic_umax  atomic_max_u64 atomic_umax_x2
    buffer_gl0_inv buffer_wbinvl1_vol
    ds_load_b32 ds_read_b32  ds_load_b64 ds_read_b64  ds_load_b96 ds_read_b96  ds_load_b128 ds_read_b128
    ds_load_u8 ds_read_u8  ds_load_i8 ds_read_i8  ds_load_u16 ds_read_u16  ds_load_i16 ds_read_i16
    ds_store_b8 ds_write_b8  ds_store_b16 ds_write_b16  ds_store_b32 ds_write_b32  ds_store_b64 ds_write_b64
    ds_store_b96 ds_write_b96  ds_store_b128 ds_write_b128
    ds_load_2addr_b32 ds_read2_b32  ds_load_2addr_b64 ds_read2_b64
    ds_store_2addr_b32 ds_write2_b32  ds_store_2addr_b64 ds_write2_b64
};

impl Names {
    /// The operation of this name, without what memory it is about and without its encoding.
    fn operation(self, name: &str) -> Option<(Op, &'static str)> {
        type Map = HashMap<&'static str, (Op, &'static str)>;
        static MAPS: [OnceLock<Map>; 3] = [const { OnceLock::new() }; 3];
        let map = || {
            let all: Map = OPERATIONS.iter().map(|(name, op, operands)| (*name, (*op, *operands))).collect();
            let renamed = if self == Names::Gfx1100 { OF_GFX11 } else { &[] };
            let mut map = all.clone();
            for (whose, names) in NOT_OF_ALL {
                map.retain(|name, _| whose.contains(&self) || !names.contains(name));
            }
            for (_, of) in renamed {
                map.remove(of);
            }
            map.extend(renamed.iter().map(|(name, of)| (*name, all[of])));
            map
        };
        MAPS[self as usize].get_or_init(map).get(name).copied()
    }

    /// A bit of a memory access: what it says of scope, or 0 for a hint.
    fn scope(self, modifier: &str) -> Option<u8> {
        Some(match (self, modifier) {
            (Names::Gfx942, "sc0") => SC0,
            (Names::Gfx942, "sc1") => SC1,
            (Names::Gfx942, "nt") => NT,
            (Names::Gfx90a | Names::Gfx1100, "glc") => SC0,
            (Names::Gfx90a | Names::Gfx1100, "slc") => NT,
            (Names::Gfx1100, "dlc") => NT,
            _ => return None,
        })
    }
}

/// A program: the instructions of a code object, in order, and their text.
pub(crate) struct Program {
    pub(crate) instructions: Vec<Instruction>,
    /// Index of the instruction at each symbol.
    pub(crate) entries: HashMap<String, usize>,
    text: Vec<Box<str>>,
}

impl Program {
    pub(crate) fn text(&self, index: usize) -> &str {
        self.text.get(index).map_or("behind the last instruction", |t| t)
    }

    /// Reads what `llvm-objdump -d` says.
    pub(crate) fn parse(listing: &str, names: Names) -> Result<Self, String> {
        let mut program = Program { instructions: Vec::new(), entries: HashMap::new(), text: Vec::new() };
        let mut unknown = Vec::new();
        for line in listing.lines() {
            if let Some((_, name)) = line.strip_suffix(">:").and_then(|l| l.split_once('<')) {
                program.entries.insert(name.to_owned(), program.instructions.len());
                continue;
            }
            let Some((text, comment)) = line.strip_prefix('\t').and_then(|l| l.split_once("//")) else { continue };
            let text = text.trim();
            let address = comment.trim_start().split(':').next().and_then(|a| u32::from_str_radix(a, 16).ok());
            let address = address.ok_or_else(|| format!("no address: {line}"))?;
            match decode_line(text, address, names) {
                Ok(instructions) => {
                    program.text.extend(instructions.iter().map(|_| text.into()));
                    program.instructions.extend(instructions);
                }
                Err(why) => unknown.push(format!("{address:#x}: {text} ({why})")),
            }
        }
        if !unknown.is_empty() {
            let shown = unknown.iter().take(20).cloned().collect::<Vec<_>>().join("\n  ");
            return Err(format!("{} instructions are not known here:\n  {shown}", unknown.len()));
        }
        // Of those at one address, the first.
        let backwards = program.instructions.iter().enumerate().rev();
        let index: HashMap<u32, usize> = backwards.map(|(k, i)| (i.address, k)).collect();
        for instruction in &mut program.instructions {
            if operands_of(instruction.op) == "J" {
                let to = i64::from(instruction.address) + 4 + 4 * i64::from(instruction.value);
                let to = u32::try_from(to).ok().and_then(|to| index.get(&to));
                instruction.value = *to.ok_or("a branch to no instruction")? as i32;
            }
        }
        Ok(program)
    }
}

fn operands_of(op: Op) -> &'static str {
    OPERATIONS[op as usize].2
}

/// A word of the text as an operand.
#[derive(Clone, Copy)]
enum Word {
    Vector(u8),
    Scalar(u8),
    Integer(i64),
    /// A literal: its 32 bits.
    Literal(u32),
    Float(f64),
    Off,
    Null,
}

fn word(text: &str) -> Option<Word> {
    Some(match text {
        "vcc" | "vcc_lo" => Word::Scalar(VCC),
        "vcc_hi" => Word::Scalar(VCC + 1),
        "exec" | "exec_lo" => Word::Scalar(EXEC),
        "exec_hi" => Word::Scalar(EXEC + 1),
        "m0" => Word::Scalar(M0),
        "off" => Word::Off,
        "null" => Word::Null,
        // 1 / (2 pi), the one constant that is no short decimal.
        "0.15915494" | "0.15915494309189532" => Word::Float(0.159_154_943_091_895_32),
        _ => {
            if let Some(register) = text.strip_prefix('v') {
                return Some(Word::Vector(first(register)?));
            }
            if let Some(register) = text.strip_prefix('s') {
                return first(register).filter(|r| *r < VCC).map(Word::Scalar);
            }
            if let Some(hex) = text.strip_prefix("0x") {
                return Some(Word::Literal(u32::from_str_radix(hex, 16).ok()?));
            }
            if text.contains('.') {
                return Some(Word::Float(text.parse().ok()?));
            }
            Word::Integer(text.parse().ok()?)
        }
    })
}

/// `3` or `[3:4]`.
fn first(register: &str) -> Option<u8> {
    match register.strip_prefix('[') {
        None => register.parse().ok(),
        Some(range) => range.strip_suffix(']')?.split_once(':')?.0.parse().ok(),
    }
}

/// The instructions of a line: one, or what a pair of them comes to one after the other.
fn decode_line(text: &str, address: u32, names: Names) -> Result<Vec<Instruction>, String> {
    let Some((one, other)) = text.split_once(" :: ").filter(|_| names == Names::Gfx1100) else {
        return Ok(vec![decode(text, address, names)?]);
    };
    let half = |text: &str| {
        let text = text.trim().strip_prefix("v_dual_").ok_or("mnemonic")?;
        // The condition goes without saying.
        let condition = if text.starts_with("cndmask_b32 ") { ", vcc_lo" } else { "" };
        let i = decode(&format!("v_{text}{condition}"), address, names)?;
        let single = matches!(i.target, Target::Vector(_)) && i.second == Target::None;
        if single { Ok(i) } else { Err("a half of a pair".to_owned()) }
    };
    let (one, mut other) = (half(one)?, half(other)?);
    // Both read before either writes.
    let reads = |i: &Instruction, target: Target| {
        let Target::Vector(v) = target else { return false };
        i.source.contains(&Source::Vector(v)) || (operands_of(i.op).starts_with('C') && i.target == target)
    };
    if one.target == other.target {
        return Err("a pair that writes a register twice".to_owned());
    }
    if !reads(&other, one.target) {
        return Ok(vec![one, other]);
    }
    if !reads(&one, other.target) {
        return Ok(vec![other, one]);
    }
    let Target::Vector(v) = one.target else { return Err("operands".to_owned()) };
    let mut keep = Instruction { op: Op::VKeep, target: Target::None, modified: false, modifiers: PLAIN, ..one };
    keep.source = [Source::Vector(v), Source::None, Source::None];
    for source in other.source.iter_mut().filter(|s| **s == Source::Vector(v)) {
        *source = Source::Kept;
    }
    Ok(vec![keep, one, other])
}

fn decode(text: &str, address: u32, names: Names) -> Result<Instruction, String> {
    let (mnemonic, rest) = text.split_once(' ').unwrap_or((text, ""));
    let name = ["_e32", "_e64", "_sdwa"].iter().find_map(|s| mnemonic.strip_suffix(s)).unwrap_or(mnemonic);
    let parts = mnemonic.ends_with("_sdwa");
    let memory = name.strip_prefix("global_").or_else(|| name.strip_prefix("flat_"));
    // Comparisons whose target is the mask of active lanes, which goes without saying.
    let compared = name.strip_prefix("v_cmpx_").filter(|_| names == Names::Gfx1100).map(|c| format!("v_cmp_{c}"));
    let (op, operands) = names
        .operation(compared.as_deref().or(memory).unwrap_or(name))
        .filter(|(_, operands)| memory.is_none() || *operands == "M")
        .ok_or("mnemonic")?;
    let mut i = Instruction {
        op,
        target: Target::None,
        second: Target::None,
        source: [Source::None; 3],
        value: 0,
        width: 0,
        scope: 0,
        modified: false,
        modifiers: PLAIN,
        address,
    };
    // What stands in brackets has commas of its own.
    let mut words: Vec<&str> = Vec::new();
    let mut modifiers: Vec<&str> = Vec::new();
    match operands {
        "Q" => {
            i.value = waited_for(rest)?;
            return Ok(i);
        }
        "V" => {
            let count = rest.trim().strip_prefix("null, 0x").and_then(|n| i32::from_str_radix(n, 16).ok());
            i.value = count.ok_or("counter")?;
            return Ok(i);
        }
        "H" => return Ok(i),
        // Registers that are given back before the end are not used any more.
        "G" if rest.trim() == "sendmsg(MSG_DEALLOC_VGPRS)" => return Ok(i),
        "G" => return Err(format!("message {rest}")),
        "R" => {
            let (target, what) = rest.split_once(", ").ok_or("operands")?;
            if what.trim() != "sendmsg(MSG_RTN_GET_REALTIME)" {
                return Err(format!("message {what}"));
            }
            let Some(Word::Scalar(s)) = word(target.trim()) else { return Err("operands".to_owned()) };
            i.target = Target::Scalar(s);
            return Ok(i);
        }
        _ => {}
    }
    let operands = if compared.is_some() {
        i.target = Target::Scalar(EXEC);
        operands.strip_prefix('T').ok_or("mnemonic")?
    } else {
        operands
    };
    for (k, piece) in pieces(rest).into_iter().enumerate() {
        let mut split = piece.split_whitespace();
        let Some(head) = split.next() else { continue };
        // Modifiers stand behind the operands, without a comma.
        if is_modifier(head) {
            if k != 0 {
                return Err(format!("modifier {head}"));
            }
            modifiers.push(head);
        } else {
            words.push(head);
        }
        modifiers.extend(split);
    }
    match operands {
        "Z" if words.is_empty() => {}
        "N" => i.value = integer(&words, 0)?,
        "J" => i.value = i32::from(words.first().and_then(|w| w.parse::<u16>().ok()).ok_or("branch")? as i16),
        "X" => scalar_load(&mut i, &words)?,
        "M" => memory_operands(&mut i, name, &words)?,
        _ => registers(&mut i, operands, &words)?,
    }
    let mut selected = [parts; 2];
    for modifier in modifiers {
        selected[1] &= !modifier.starts_with("dst_sel");
        apply(&mut i, operands, modifier, names)?;
    }
    if matches!(op, Op::WriteBack | Op::Invalidate) && i.scope & !(SC0 | SC1) != 0 {
        return Err("scope".to_owned());
    }
    // 16-bit floats and parts of registers are read by few.
    if i.modified && operands.contains(['w']) && i.modifiers.negate | i.modifiers.absolute != 0 {
        return Err("a sign on integers".to_owned());
    }
    i.modified |= parts;
    // GFX9 writes zeros above results of 16 bits, GFX11 nothing.
    if names == Names::Gfx1100 && SHORT.contains(&op) {
        i.modified = true;
        (i.modifiers.target, i.modifiers.rest) = (Part::Word(0), Rest::Kept);
    }
    Ok(i)
}

/// What has results of 16 bits.
const SHORT: &[Op] = &[
    Op::VLshlRev16,
    Op::VLshrRev16,
    Op::VAshrRev16,
    Op::VAddU16,
    Op::VSubU16,
    Op::VSubRevU16,
    Op::VMulLo16,
    Op::VMadU16,
    Op::VMadU16B,
    Op::VMinU16,
    Op::VMaxU16,
    Op::VMinI16,
    Op::VMaxI16,
    Op::VCvtHF,
];

/// `rest` cut at the commas outside of brackets.
fn pieces(rest: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut depth, mut from) = (0, 0);
    for (at, c) in rest.char_indices() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                pieces.push(&rest[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(&rest[from..]);
    pieces
}

fn is_modifier(word: &str) -> bool {
    matches!(word, "sc0" | "sc1" | "nt" | "glc" | "slc" | "dlc" | "scc" | "gds")
        || (word.contains(':') && !word.contains(['[', '|', '-']))
}

fn integer(words: &[&str], at: usize) -> Result<i32, String> {
    match words.get(at).and_then(|w| word(w)) {
        Some(Word::Integer(x)) => i32::try_from(x).map_err(|_| "number".to_owned()),
        Some(Word::Literal(x)) => Ok(x as i32),
        _ => Err("number".to_owned()),
    }
}

/// The outstanding vector memory operations that `s_waitcnt` leaves, or -1 for any number. Scalar loads and LDS are
/// complete at once here.
fn waited_for(rest: &str) -> Result<i32, String> {
    let mut left = -1;
    for counter in rest.split_whitespace().filter(|c| *c != "&") {
        let (name, number) = counter.strip_suffix(')').and_then(|c| c.split_once('(')).ok_or("counter")?;
        match name {
            "vmcnt" => left = number.parse().map_err(|_| "counter")?,
            "lgkmcnt" | "expcnt" => {}
            _ => return Err(format!("counter {name}")),
        }
    }
    Ok(left)
}

fn scalar_load(i: &mut Instruction, words: &[&str]) -> Result<(), String> {
    i.width = match i.op {
        Op::SLoad => 1,
        Op::SLoad2 => 2,
        Op::SLoad4 => 4,
        Op::SLoad8 => 8,
        _ => 16,
    };
    let (Some(Word::Scalar(to)), Some(Word::Scalar(from)), 3) =
        (words.first().and_then(|w| word(w)), words.get(1).and_then(|w| word(w)), words.len())
    else {
        return Err("operands".to_owned());
    };
    i.target = Target::Scalar(to);
    i.source[0] = Source::Scalar(from);
    match word(words[2]) {
        Some(Word::Scalar(offset)) => i.source[1] = Source::Scalar(offset),
        Some(Word::Null) => {}
        _ => i.value = integer(words, 2)?,
    }
    Ok(())
}

/// Sources: address, scalar base or none, data.
fn memory_operands(i: &mut Instruction, name: &str, words: &[&str]) -> Result<(), String> {
    use Op::*;
    let vector = |at: usize| match words.get(at).and_then(|w| word(w)) {
        Some(Word::Vector(v)) => Ok(Source::Vector(v)),
        _ => Err("operands".to_owned()),
    };
    let target = |at: usize| match vector(at)? {
        Source::Vector(v) => Ok::<Target, String>(Target::Vector(v)),
        _ => Err("operands".to_owned()),
    };
    i.width = match i.op {
        LoadU8 | LoadI8 | LoadU8Low | LoadU8High | LoadI8Low | LoadI8High | Store8 | Store8High | DsReadU8
        | DsReadI8 | DsWrite8 => 1,
        LoadU16 | LoadI16 | LoadLow | LoadHigh | Store16 | Store16High | DsReadU16 | DsReadI16 | DsWrite16 => 2,
        Load2 | Store2 | Swap2 | CmpSwap2 | Add2 | Sub2 | And2 | Or2 | Xor2 | MinU2 | MaxU2 | DsRead2 | DsWrite2
        | DsReadTwo2 | DsWriteTwo2 => 8,
        Load3 | Store3 | DsRead3 | DsWrite3 => 12,
        Load4 | Store4 | DsRead4 | DsWrite4 => 16,
        _ => 4,
    };
    let count;
    if name.starts_with("ds_") {
        match i.op {
            DsRead | DsRead2 | DsRead3 | DsRead4 | DsReadU8 | DsReadI8 | DsReadU16 | DsReadI16 | DsReadTwo
            | DsReadTwo2 => {
                (i.target, i.source[0], count) = (target(0)?, vector(1)?, 2);
            }
            DsBpermute => (i.target, i.source[0], i.source[2], count) = (target(0)?, vector(1)?, vector(2)?, 3),
            DsWriteTwo | DsWriteTwo2 => (i.source, count) = ([vector(0)?, vector(2)?, vector(1)?], 3),
            _ => (i.source[0], i.source[2], count) = (vector(0)?, vector(1)?, 2),
        }
    } else {
        let load = name.contains("_load_");
        // An atomic names its target where it answers the old value (sc0).
        let answers =
            load || (name.contains("_atomic_") && words.len() == if name.starts_with("flat") { 3 } else { 4 });
        let mut at = 0;
        if answers {
            i.target = target(0)?;
            at = 1;
        }
        i.source[0] = vector(at)?;
        at += 1;
        if !load {
            i.source[2] = vector(at)?;
            at += 1;
        }
        if !name.starts_with("flat") {
            i.source[1] = match words.get(at).and_then(|w| word(w)) {
                Some(Word::Off) => Source::None,
                Some(Word::Scalar(s)) => Source::Scalar(s),
                _ => return Err("operands".to_owned()),
            };
            at += 1;
        }
        count = at;
    }
    if words.len() == count { Ok(()) } else { Err("operands".to_owned()) }
}

fn registers(i: &mut Instruction, operands: &str, words: &[&str]) -> Result<(), String> {
    let mut words = words.iter();
    let mut source = 0;
    let register = |text: &&str| match word(text) {
        Some(Word::Vector(v)) => Ok(Target::Vector(v)),
        Some(Word::Scalar(s)) => Ok(Target::Scalar(s)),
        Some(Word::Null) => Ok(Target::None),
        _ => Err(format!("target {text}")),
    };
    for kind in operands.chars() {
        match kind {
            'T' | 'C' => i.target = register(words.next().ok_or("operands")?)?,
            'S' => i.second = register(words.next().ok_or("operands")?)?,
            _ => {
                // The condition of v_cndmask_b32 and the like is written out, or the flag of the text's form.
                let text = words.next().ok_or("operands")?;
                i.source[source] = source_of(i, text, kind, source)?;
                source += 1;
            }
        }
    }
    if words.next().is_some() { Err("operands".to_owned()) } else { Ok(()) }
}

fn source_of(i: &mut Instruction, text: &str, kind: char, at: usize) -> Result<Source, String> {
    let mut text = text;
    if let Some(inner) = text.strip_prefix("sext(").and_then(|t| t.strip_suffix(')')) {
        i.modifiers.signed |= 1 << at;
        i.modified = true;
        text = inner;
    }
    // A minus before a digit is the number's own.
    if let Some(inner) = text.strip_prefix('-').filter(|t| !t.starts_with(|c: char| c.is_ascii_digit())) {
        i.modifiers.negate |= 1 << at;
        i.modified = true;
        text = inner;
    }
    if let Some(inner) = text.strip_prefix('|').and_then(|t| t.strip_suffix('|')) {
        i.modifiers.absolute |= 1 << at;
        i.modified = true;
        text = inner;
    }
    if (i.modifiers.negate | i.modifiers.absolute) >> at & 1 != 0 && !matches!(kind, 'f' | 'd' | 'h') {
        return Err(format!("a sign on {text}"));
    }
    Ok(match word(text).ok_or_else(|| format!("operand {text}"))? {
        Word::Vector(v) => Source::Vector(v),
        Word::Scalar(s) => Source::Scalar(s),
        Word::Off => return Err("operand off".to_owned()),
        Word::Null => Source::Constant(0),
        Word::Integer(x) => Source::Constant(match kind {
            // Inline integers are extended to the width that is read; a pair holds them in its low half.
            'l' | 'L' | 'd' => x as u64,
            _ => u64::from(x as u32),
        }),
        Word::Literal(x) => Source::Constant(match kind {
            'd' => u64::from(x) << 32,
            'L' => i64::from(x as i32) as u64,
            _ => u64::from(x),
        }),
        Word::Float(x) => Source::Constant(match kind {
            'l' | 'L' | 'd' => x.to_bits(),
            'h' | 'w' => u64::from(half::f16::from_f64(x).to_bits()),
            _ => u64::from((x as f32).to_bits()),
        }),
    })
}

fn apply(i: &mut Instruction, operands: &str, modifier: &str, names: Names) -> Result<(), String> {
    let unknown = || format!("modifier {modifier}");
    let m = &mut i.modifiers;
    let Some((name, value)) = modifier.split_once(':') else {
        // What an atomic answers is said by its target; nt is a hint.
        i.scope |= names.scope(modifier).ok_or_else(unknown)?;
        let takes = operands == "M" || (names == Names::Gfx942 && matches!(i.op, Op::WriteBack | Op::Invalidate));
        return if takes { Ok(()) } else { Err(unknown()) };
    };
    if operands == "M" {
        let number = || value.parse::<i32>().map_err(|_| unknown());
        match name {
            "offset" => i.value = number()?,
            // Two offsets of one byte each.
            "offset0" => i.value |= number()?,
            "offset1" => i.value |= number()? << 8,
            _ => return Err(unknown()),
        }
        return Ok(());
    }
    let part = || {
        Ok(match value.split_once('_') {
            None if value == "DWORD" => Part::Whole,
            Some(("BYTE", k)) => Part::Byte(k.parse().map_err(|_| unknown())?),
            Some(("WORD", k)) => Part::Word(k.parse().map_err(|_| unknown())?),
            _ => return Err(unknown()),
        })
    };
    let halves = || -> Result<u8, String> {
        let bits = value.strip_prefix('[').and_then(|v| v.strip_suffix(']')).ok_or_else(unknown)?;
        bits.split(',').enumerate().try_fold(0, |all, (k, bit)| match bit {
            "0" => Ok(all),
            "1" => Ok(all | 1 << k),
            _ => Err(unknown()),
        })
    };
    i.modified = true;
    match name {
        "src0_sel" => m.part[0] = part()?,
        "src1_sel" => m.part[1] = part()?,
        "dst_sel" => m.target = part()?,
        "dst_unused" => {
            m.rest = match value {
                "UNUSED_PAD" => Rest::Zero,
                "UNUSED_SEXT" => Rest::SignExtended,
                "UNUSED_PRESERVE" => Rest::Kept,
                _ => return Err(unknown()),
            }
        }
        "op_sel" if operands.contains('p') => m.low = halves()?,
        "op_sel_hi" if operands.contains('p') => m.high = halves()?,
        _ => return Err(unknown()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of gfx942.
    fn decode(text: &str, address: u32) -> Result<Instruction, String> {
        super::decode(text, address, Names::Gfx942)
    }

    fn refused(text: &str) -> String {
        decode(text, 0).err().unwrap_or_else(|| panic!("{text} was taken"))
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(refused("v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]"), "mnemonic");
        assert_eq!(refused("v_add_f32_e64 v0, v1, v2 clamp"), "modifier clamp");
        assert_eq!(refused("v_add_f32_e64 v0, v1, v2 mul:2"), "modifier mul:2");
        assert_eq!(refused("v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf"), "mnemonic");
        assert_eq!(refused("global_load_dword v0, v[2:3], off glc"), "modifier glc");
        assert_eq!(refused("v_add_u32_e32 v0, src_shared_base, v1"), "operand src_shared_base");
        assert_eq!(refused("s_waitcnt vscnt(0)"), "counter vscnt");
        assert_eq!(refused("buffer_inv nt"), "scope");
        assert_eq!(refused("v_add_u32_e32 v0, v1, v2, v3"), "operands");
        assert_eq!(refused("v_add_u32_e64 v0, -v1, v2"), "a sign on v1");
    }

    #[test]
    fn constants_are_as_wide_as_they_are_read() {
        let constant = |text: &str, at: usize| decode(text, 0).expect(text).source[at];
        assert_eq!(constant("v_add_f32_e32 v0, 1.0, v1", 0), Source::Constant(0x3f80_0000));
        assert_eq!(constant("v_fma_f64 v[0:1], v[2:3], v[4:5], 1.0", 2), Source::Constant(1f64.to_bits()));
        assert_eq!(constant("v_add_f64 v[0:1], v[2:3], 0x40080000", 1), Source::Constant(3f64.to_bits()));
        assert_eq!(constant("s_mov_b64 s[0:1], -1", 0), Source::Constant(u64::MAX));
        assert_eq!(constant("v_cmp_gt_i64_e32 vcc, 0x80000000, v[0:1]", 0), Source::Constant(0xffff_ffff_8000_0000));
        assert_eq!(constant("v_add_u32_e32 v0, -1, v1", 0), Source::Constant(0xffff_ffff));
        assert_eq!(constant("v_pack_b32_f16 v0, 1.0, v1", 0), Source::Constant(0x3c00));
    }

    #[test]
    fn modifiers_are_read() {
        let i = decode(
            "v_min_i32_sdwa v21, v21, sext(v40) dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_2",
            0,
        )
        .expect("known");
        assert!(i.modified && i.modifiers.signed == 2);
        assert_eq!((i.modifiers.part, i.modifiers.target), ([Part::Whole, Part::Byte(2)], Part::Word(1)));
        let i = decode("v_fma_f64 v[22:23], -v[22:23], |v[28:29]|, v[26:27]", 0).expect("known");
        assert_eq!((i.modifiers.negate, i.modifiers.absolute), (1, 2));
        let i = decode("v_pk_mov_b32 v[0:1], v[2:3], v[4:5] op_sel:[1,0]", 0).expect("known");
        assert_eq!(i.modifiers.low, 1);
        let i = decode("global_store_dwordx2 v[4:5], v[2:3], off offset:-8 sc0 sc1", 0).expect("known");
        assert_eq!((i.value, i.scope, i.width), (-8, SC0 | SC1, 8));
        let i = decode("global_atomic_add_x2 v3, v[2:3], s[4:5] sc1", 0).expect("known");
        assert_eq!((i.target, i.source[2]), (Target::None, Source::Vector(2)));
        assert_eq!(decode("s_waitcnt vmcnt(3) lgkmcnt(0)", 0).expect("known").value, 3);
    }

    /// Each target has its own words, and no other's.
    #[test]
    fn names_are_those_of_the_target() {
        let decode = |text: &str, names| super::decode(text, 0, names);
        let refused = |text: &str, names| decode(text, names).err().unwrap_or_else(|| panic!("{text} was taken"));
        let i = decode("global_load_dwordx2 v[2:3], v0, s[2:3] glc", Names::Gfx90a).expect("known");
        assert_eq!((i.op, i.scope), (Op::Load2, SC0));
        assert_eq!(decode("buffer_invl2", Names::Gfx90a).expect("known").op, Op::InvalidateLast);
        assert_eq!(decode("buffer_wbinvl1_vol", Names::Gfx90a).expect("known").op, Op::InvalidateFirst);
        assert_eq!(refused("global_load_dword v0, v[2:3], off sc1", Names::Gfx90a), "modifier sc1");
        assert_eq!(refused("global_load_dword v0, v[2:3], off scc", Names::Gfx90a), "modifier scc");
        assert_eq!(refused("buffer_wbl2 sc1", Names::Gfx90a), "modifier sc1");
        assert_eq!(refused("buffer_inv sc1", Names::Gfx90a), "mnemonic");
        assert_eq!(refused("v_lshl_add_u64 v[0:1], v[2:3], 0, v[4:5]", Names::Gfx90a), "mnemonic");
        assert_eq!(refused("buffer_invl2", Names::Gfx942), "mnemonic");
        assert_eq!(refused("v_mac_f32_e32 v0, v1, v2", Names::Gfx942), "mnemonic");
    }

    #[test]
    fn gfx11_has_its_own_names() {
        let decode = |text: &str| super::decode(text, 0, Names::Gfx1100);
        let of = |text: &str| decode(text).expect(text);
        let refused = |text: &str| decode(text).err().unwrap_or_else(|| panic!("{text} was taken"));
        let i = of("global_load_b64 v[2:3], v0, s[2:3] glc");
        assert_eq!((i.op, i.width, i.scope), (Op::Load2, 8, SC0));
        assert_eq!(of("s_and_saveexec_b32 s0, vcc_lo").op, Op::SAndSaveExec);
        assert_eq!(of("s_waitcnt_vscnt null, 0x3").value, 3);
        assert_eq!(of("s_delay_alu instid0(VALU_DEP_1) | instskip(NEXT) | instid1(VALU_DEP_2)").op, Op::Delay);
        assert_eq!(of("v_mad_u64_u32 v[10:11], null, v5, s0, 0").second, Target::None);
        let i = of("v_cmpx_ne_u64_e32 0, v[9:10]");
        assert_eq!((i.op, i.target, i.source[1]), (Op::VCmpNeU64, Target::Scalar(EXEC), Source::Vector(9)));
        assert_eq!(of("s_sendmsg_rtn_b64 s[0:1], sendmsg(MSG_RTN_GET_REALTIME)").target, Target::Scalar(0));
        // What is above a short result stays.
        assert_eq!(of("v_sub_nc_u16 v0, v1, v2").modifiers.rest, Rest::Kept);
        assert_eq!(refused("s_sendmsg sendmsg(MSG_INTERRUPT)"), "message sendmsg(MSG_INTERRUPT)");
        assert_eq!(refused("s_sendmsg_rtn_b64 s[0:1], sendmsg(MSG_RTN_GET_TMA)"), "message sendmsg(MSG_RTN_GET_TMA)");
        for other in ["global_load_dwordx2 v[2:3], v0, s[2:3]", "s_and_saveexec_b64 s[0:1], vcc", "buffer_wbl2"] {
            assert_eq!(refused(other), "mnemonic");
        }
    }

    /// Both halves read before either writes.
    #[test]
    fn pairs_are_put_in_order() {
        let ops = |text: &str| {
            let all = decode_line(text, 0, Names::Gfx1100).expect(text);
            all.iter().map(|i| (i.op, i.target, i.source[0])).collect::<Vec<_>>()
        };
        let (v, s) = (Target::Vector, Source::Vector);
        assert_eq!(
            ops("v_dual_mov_b32 v0, v2 :: v_dual_mov_b32 v1, v3"),
            [(Op::VMov, v(0), s(2)), (Op::VMov, v(1), s(3))]
        );
        assert_eq!(
            ops("v_dual_mov_b32 v0, v2 :: v_dual_add_f32 v1, v0, v3"),
            [(Op::VAddF, v(1), s(0)), (Op::VMov, v(0), s(2))]
        );
        assert_eq!(
            ops("v_dual_mov_b32 v0, v1 :: v_dual_mov_b32 v1, v0"),
            [(Op::VKeep, Target::None, s(0)), (Op::VMov, v(0), s(1)), (Op::VMov, v(1), Source::Kept)]
        );
        let pair = "v_dual_cndmask_b32 v4, v4, v7 :: v_dual_fmac_f32 v5, v6, v4";
        let all = decode_line(pair, 0, Names::Gfx1100).expect("known");
        assert_eq!((all[0].op, all[1].source[2]), (Op::VFmacF, Source::Scalar(VCC)));
        assert!(decode_line(pair, 0, Names::Gfx942).is_err());
        assert!(decode_line("v_dual_mov_b32 v0, v1 :: v_dual_dot2acc_f32_f16 v1, v2, v3", 0, Names::Gfx1100).is_err());
    }
}

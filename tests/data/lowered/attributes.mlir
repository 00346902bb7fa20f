module @jit_attributes attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4x4xf32>, %arg1: tensor<4x4xf32>) -> (tensor<4x4xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.tanh %0 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : tensor<4x4xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %3 = stablehlo.subtract %2, %1 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : tensor<4x4xf32>
    %4 = stablehlo.sine %1 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#we:ird / [op] <x> (y) #z 'q' \22d\22 \\b \CE\BB@v2.1:fedcba9876543210"}} : tensor<4x4xf32>
    %5 = stablehlo.cosine %1 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#we:ird / [op] <x> (y) #z 'q' \22d\22 \\b \CE\BB@v2.1:fedcba9876543210"}} : tensor<4x4xf32>
    %cst_0 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %7 = stablehlo.multiply %4, %6 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#we:ird / [op] <x> (y) #z 'q' \22d\22 \\b \CE\BB@v2.1:fedcba9876543210"}} : tensor<4x4xf32>
    %8 = stablehlo.dot_general %7, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %9 = stablehlo.tanh %8 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : tensor<4x4xf32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %11 = stablehlo.subtract %10, %9 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : tensor<4x4xf32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %13 = stablehlo.multiply %12, %11 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : tensor<4x4xf32>
    %14 = stablehlo.multiply %13, %9 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : tensor<4x4xf32>
    %15 = stablehlo.add %13, %14 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : tensor<4x4xf32>
    %16 = stablehlo.dot_general %15, %arg1, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %cst_3 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %18 = stablehlo.multiply %16, %17 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#we:ird / [op] <x> (y) #z 'q' \22d\22 \\b \CE\BB@v2.1:fedcba9876543210"}} : tensor<4x4xf32>
    %19 = stablehlo.multiply %18, %5 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#we:ird / [op] <x> (y) #z 'q' \22d\22 \\b \CE\BB@v2.1:fedcba9876543210"}} : tensor<4x4xf32>
    %20 = stablehlo.multiply %19, %3 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : tensor<4x4xf32>
    %21 = stablehlo.multiply %20, %1 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : tensor<4x4xf32>
    %22 = stablehlo.add %20, %21 {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : tensor<4x4xf32>
    %23 = stablehlo.dot_general %22, %arg1, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] {mhlo.frontend_attributes = {ejkernel_label = "ejkernel_ops#matmul@v1:0123456789abcdef"}} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %23 : tensor<4x4xf32>
  }
}

# For Java: take the classes of Spark as they are. To look through the bytecode of the thousands that are loaded is a sixth of what a JVM
# takes of the processor until its first tables are made.
UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"

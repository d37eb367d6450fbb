package flagset

// retiredGates returns gates that the replaced components accept, or did in a version whose manifests are still in use,
// and that switch nothing here, with the reason.
func retiredGates() map[string]string {
	const library = "it concerns API servers only"
	gates := map[string]string{"HonorPVReclaimPolicy": "the feature is always on"}
	for _, name := range []string{
		"APIResponseCompression", "APIServerIdentity", "APIServingWithRoutine", "AllowParsingUserUIDFromCertAuth",
		"AllowUnsafeMalformedObjectDeletion", "CBORServingAndStorage", "ComponentFlagz", "ComponentStatusz", "ConcurrentWatchObjectDecode",
		"ConstrainedImpersonation", "CoordinatedLeaderElection", "DeclarativeValidationBeta", "DetectCacheInconsistency",
		"ListFromCacheSnapshot", "ManifestBasedAdmissionControlConfig", "NativeHistograms", "OpenAPIEnums", "RemoteRequestHeaderUID",
		"ShardedListAndWatch", "SizeBasedListCostEstimate", "StorageVersionAPI", "StorageVersionHash",
		"StructuredAuthenticationConfigurationEgressSelector", "StructuredAuthenticationConfigurationJWKSMetrics",
		"TokenRequestServiceAccountUIDValidation", "UnauthenticatedHTTP2DOSMitigation",
	} {
		gates[name] = library
	}
	return gates
}

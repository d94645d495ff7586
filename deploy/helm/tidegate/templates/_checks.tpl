{{/* Values that do not go together, each with a sentence. */}}
{{- define "tidegate.checks" -}}
{{- $v := .Values -}}
{{- if and (eq $v.device "cpu") (ne $v.engines.mode "none") -}}
{{- fail "engines.mode is none for device cpu: the engine builder's image is TensorRT's" -}}
{{- end -}}
{{- if ne (eq $v.modelRepository.kind "image") (eq $v.engines.mode "none") -}}
{{- if or (ne $v.modelRepository.kind "claim") (not $v.modelRepository.claim.existing) -}}
{{- fail "engines.mode none goes with modelRepository.kind image or an existing claim; the others build into an emptyDir or a claim" -}}
{{- end -}}
{{- end -}}
{{- if and (eq $v.device "gpu") (eq $v.modelRepository.kind "image") -}}
{{- fail "device gpu needs engines for its GPU: set engines.mode, and modelRepository.kind to emptyDir or claim" -}}
{{- end -}}
{{- if and (eq $v.engines.mode "job") (ne $v.modelRepository.kind "claim") -}}
{{- fail "engines.mode job needs modelRepository.kind claim: its pod and Triton's share the volume" -}}
{{- end -}}
{{- $several := or (ne $v.triton.autoscaling.kind "none") (gt (int $v.triton.replicas) 1) -}}
{{- $surges := ne (toString $v.triton.rollingUpdate.maxSurge) "0" -}}
{{- if and (eq $v.engines.mode "initContainer") (eq $v.modelRepository.kind "claim") (or $several $surges) -}}
{{- fail "two pods must not build into one claim at the same time: with initContainer and claim set triton.replicas 1, autoscaling none and rollingUpdate.maxSurge 0; or use engines.mode job, or modelRepository.kind emptyDir" -}}
{{- end -}}
{{- if and (eq $v.modelRepository.kind "claim") $several (eq $v.modelRepository.claim.accessMode "ReadWriteOnce") (not $v.modelRepository.claim.existing) -}}
{{- fail "several Tritons need a claim of modelRepository.claim.accessMode ReadWriteMany" -}}
{{- end -}}
{{- if and (contains "mig-" $v.triton.gpu.resource) (gt (int $v.triton.gpu.count) 1) -}}
{{- fail "triton.gpu.count is at most 1 for a MIG slice: CUDA uses no more in one process; raise triton.replicas" -}}
{{- end -}}
{{- if and (or (eq $v.gateway.autoscaling.kind "keda") (eq $v.triton.autoscaling.kind "keda")) (not $v.prometheus.url) -}}
{{- fail "autoscaling.kind keda needs prometheus.url" -}}
{{- end -}}
{{- range list $v.gateway $v.triton -}}
{{- if gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" -}}
{{- end -}}
{{- end -}}
{{- if and (eq $v.exposure.kind "httpRoute") (not $v.exposure.httpRoute.parentRefs) -}}
{{- fail "exposure.kind httpRoute needs exposure.httpRoute.parentRefs" -}}
{{- end -}}
{{- if and (eq $v.exposure.kind "ingress") (not $v.exposure.hosts) -}}
{{- fail "exposure.kind ingress needs exposure.hosts" -}}
{{- end -}}
{{- $least := addf (mulf $v.triton.connections.maxAgeSeconds 1.1) 60 -}}
{{- if and (lt (float64 $v.triton.drain.delaySeconds) $least) $surges -}}
{{- fail (printf "triton.drain.delaySeconds must be at least %v: connections.maxAgeSeconds and a tenth, plus 60" (ceil $least)) -}}
{{- end -}}
{{- end }}
